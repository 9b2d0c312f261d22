"""What the GPUs of a job's ranks do, from NVML's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdp_doctor.subjects.gpu import Gpu
from fsdp_doctor.subjects.stacks import GpuLoad


def gpu_loads(gpus: Sequence[Gpu], ranks: Mapping[int, int]) -> tuple[GpuLoad, ...]:
    """The GPUs that hold memory of these processes (id -> rank).

    In a container NVML may hide process ids: then all GPUs in use are taken, without ranks.
    """
    held = {g.index: _ranks_on(g, ranks) for g in gpus}
    known = any(held.values())
    return tuple(
        GpuLoad(
            index=gpu.index,
            ranks=held[gpu.index],
            name=gpu.name,
            utilisation=gpu.utilization,
            power=_watts(gpu.power_usage),
            limit=_watts(gpu.power_limit),
            memory_used=gpu.memory_used if gpu.memory_used is not None else gpu.memory_used_v1,
            memory_total=gpu.memory_total,
        )
        for gpu in gpus
        if held[gpu.index] or (not known and ranks and _in_use(gpu))
    )


def _ranks_on(gpu: Gpu, ranks: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted({ranks[p.pid] for p in gpu.processes or () if p.pid in ranks}))


IDLE_BYTES = 1 << 30
"""A GPU that holds less than this is taken for one that nobody uses."""


def _in_use(gpu: Gpu) -> bool:
    used = gpu.memory_used if gpu.memory_used is not None else gpu.memory_used_v1
    return used is not None and used > IDLE_BYTES


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
