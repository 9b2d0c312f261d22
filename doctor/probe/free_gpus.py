"""Which GPUs a probe may use: those that nobody else works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.subjects.gpu import Gpu, GpuProcess
from fsdp_doctor.tables.probe_thresholds import BUSY_BYTES

SHOWN = 3


def in_use(gpus: Sequence[Gpu]) -> Iterator[str]:
    """One line for each GPU that another process uses."""
    for gpu in gpus:
        others = [p for p in (*(gpu.processes or ()), *(gpu.mps_processes or ())) if not p.own]
        used = gpu.memory_used if gpu.memory_used is not None else gpu.memory_used_v1
        if others:
            yield f"GPU {gpu.index} is used by {', '.join(_words(p) for p in others[:SHOWN])}"
        elif used is not None and used > BUSY_BYTES and not any(p.own for p in gpu.processes or ()):
            yield f"GPU {gpu.index} has {used / (1 << 30):.1f} GiB in use by a process that is not shown"


def _words(used: GpuProcess) -> str:
    return f"process {used.pid}" + (f" ({used.name})" if used.name else "")
