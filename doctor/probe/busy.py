"""Whether others use the cores of the ranks meanwhile, and how far slow must then be to mean anything.

Ranks on CPU cores load the machine themselves, so neither its load average nor its pressure tells whether
somebody else does. What all processes took of the cores (stolen time included), less what the ranks of the
same machine took, is what others took.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from fsdp_doctor.probe.stats import finite
from fsdp_doctor.subjects.probe import MachineLoad, ProbeResult
from fsdp_doctor.tables.probe_thresholds import BUSY_SHARE, BUSY_WAIT


def others_share(result: ProbeResult) -> float | None:
    """The largest part of a machine's cores that others than the ranks took; None where it is not known."""
    machines: dict[str, list[MachineLoad]] = defaultdict(list)
    for rank in result.ranks:
        if rank.load is not None and rank.load.seconds > 0 and rank.load.cores > 0:
            machines[rank.load.machine].append(rank.load)
    shares = []
    for loads in machines.values():
        taken = statistics.median(x.taken_seconds / x.seconds / x.cores for x in loads)
        own = sum(x.own_seconds / x.seconds / x.cores for x in loads)
        shares.append(min(max(taken - own, 0.0), 1.0))
    return max(shares, default=None)


def queueing(result: ProbeResult) -> float | None:
    """Wall over CPU time of the fixed work at the middle rank, beyond what the ranks' own number explains."""
    waits, cores = [], 0
    for rank in result.ranks:
        wall = sum(v for w in rank.work if w.cpu_seconds for v in finite(w.wall_seconds))
        cpu = sum(v for w in rank.work for v in finite(w.cpu_seconds))
        if wall > 0 and cpu > 0:
            waits.append(wall / cpu)
        cores = max(cores, rank.cores or 0)
    if not waits or not cores:
        return None
    most = max(sum(r.host == host for r in result.ranks) for host in {r.host for r in result.ranks})
    return statistics.median(waits) / max(1.0, most / cores)


def busy_words(result: ProbeResult) -> str:
    """Why figures of this probe are doubtful; "" on GPUs and on machines that others leave alone."""
    if result.device == "cuda":
        return ""
    share, queued = others_share(result), queueing(result)
    if share is not None and share >= BUSY_SHARE:
        return f"this machine is busy: other processes took {share:.0%} of its cores meanwhile"
    if share is None and queued is not None and queued >= BUSY_WAIT:
        return f"this machine is busy: fixed work waited for a core {queued:.1f}x as long as expected"
    return ""


def unqueued(wall: Iterable[float], waited: Iterable[float], cpu: Iterable[float]) -> list[float]:
    """Times of fixed work without what other processes' turns on the core took of them.

    Never less than the CPU time: the wait is counted around the work and may exceed it.
    """
    return finite(max(w - d, c) for w, d, c in zip(wall, waited, cpu, strict=False))
