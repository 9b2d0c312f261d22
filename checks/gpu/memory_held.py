"""GPU memory that others hold before the run."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import unanswered
from fsdp_doctor.engine.devices import counted, gpu_subject, gpu_words, used
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, GpuProcess, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.tables.gpu_thresholds import DRIVER_RESERVE, FREE_FAIL_FRACTION, HELD_WARN

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
GIB = 1 << 30
SHOWN = 4


def _processes(gpu: Gpu) -> tuple[GpuProcess, ...]:
    """Each process once, with the largest amount that any list gives."""
    found: dict[int, GpuProcess] = {}
    for p in (*(gpu.processes or ()), *(gpu.graphics_processes or ()), *(gpu.mps_processes or ())):
        known = found.get(p.pid)
        if known is None or (p.used_bytes or 0) > (known.used_bytes or 0):
            found[p.pid] = p
    return tuple(found.values())


def _held(gpu: Gpu) -> int | None:
    """Bytes in use by others than this tool; version 1 of the answer counts the driver's reserve too."""
    own = sum(p.used_bytes or 0 for p in _processes(gpu) if p.own)
    if gpu.memory_used is not None:
        return max(gpu.memory_used - own, 0)
    foreign = sum(p.used_bytes or 0 for p in _processes(gpu) if not p.own)
    if gpu.memory_used_v1 is None:
        return foreign if gpu.processes is not None else None
    return max(gpu.memory_used_v1 - own - DRIVER_RESERVE, foreign, 0)


def _words(process: GpuProcess) -> str:
    size = f"{process.used_bytes / GIB:.1f} GiB" if process.used_bytes is not None else "size hidden"
    owner = f", uid {process.uid}" if process.uid is not None else ""
    return f"process {process.pid} ({process.name or 'name not visible'}{owner}, {size})"


def _by(gpu: Gpu, held: int, container: bool) -> str:
    foreign = sorted((p for p in _processes(gpu) if not p.own), key=lambda p: -(p.used_bytes or 0))
    if not foreign:
        where = "outside this container or " if container else ""
        return f"by a process that this user cannot see ({where}already dead)"
    shown = ", ".join(_words(p) for p in foreign[:SHOWN])
    shown += f" and {len(foreign) - SHOWN} more" if foreign[SHOWN:] else ""
    named = sum(p.used_bytes or 0 for p in foreign)
    complete = all(p.used_bytes is not None for p in foreign)
    rest = held - named
    unseen = complete and rest > HELD_WARN
    return f"by {shown}" + (f"; {rest / GIB:.1f} GiB by unseen processes" if unseen else "")


@check("GPU028", Row.OOM, needs=(Gpus,), uses=(Host,), tags=("gpu", "memory", "process"))
def memory_held(facts: Facts, options: Options) -> Iterator[Finding]:
    """Other processes hold GPU memory.

    What: reads the used memory of each visible GPU without the driver's reserve, and the processes that
        hold it. This tool's own processes do not count.
    Why: FSDP shards equally, so the rank on the GPU with the least free memory runs out first, and takes
        the job with it. The holder is mostly a leftover of an earlier run.
    Fix: end the leftover processes, or wait until the other job has ended.
    Sources: NVML API reference (memory information version 2); Meta GCM (running processes, memory usage).
    """
    gpus, host = used(facts[Gpus]), facts.find(Host)
    container = host is not None and host.container is not None
    known = [(g, held) for g in gpus if (held := _held(g)) is not None]
    if not known:
        yield unanswered(gpus, MEMORY, "the used GPU memory")
        return
    loaded = [(g, held) for g, held in known if held > HELD_WARN]
    for g, held in loaded:
        foreign = [p for p in _processes(g) if not p.own]
        total = g.memory_total or 0
        free = g.memory_free if g.memory_free is not None else total - held
        say = fail if total and free < FREE_FAIL_FRACTION * total else warn
        yield say(
            f"GPU {g.index}: {held / GIB:.1f} GiB"
            + (f" of {total / GIB:.1f} GiB" if total else "")
            + f" in use {_by(g, held, container)}",
            f"less than {HELD_WARN / GIB:.1f} GiB in use before the run",
            subject=gpu_subject([g]),
            fix=Fix(
                "End the process if it is a leftover (as its owner), or wait for the other job"
                if foreign
                else "Find the holder on the host, outside of this container, and end it if it is a leftover",
                f"ps -o pid,user,lstart,cmd -p {','.join(str(p.pid) for p in foreign)}"
                if foreign
                else "sudo fuser -v /dev/nvidia*",
                Risk.SAFE if foreign else Risk.NEEDS_ROOT,
                Owner.YOU if foreign else Owner.ADMIN,
            ),
            evidence=(Evidence("NVML memory", f"used {held} of {total} bytes"),),
        )
    shared = [g for g, _ in known if g.mps_processes]
    if shared:
        yield info(
            f"{gpu_words(shared)}: processes run through MPS",
            expected="an FSDP rank has its GPU to itself",
            subject=gpu_subject(shared),
        )
    if not loaded and not shared:
        most = max(held for _, held in known)
        yield ok(f"at most {most >> 20} MiB in use on {counted(known)}")
