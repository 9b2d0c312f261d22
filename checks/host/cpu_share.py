"""Processors for each rank: control-group quota, affinity and the machine's own count."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.job import USES, local_ranks, visible_gpus
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.tables.host_thresholds import CORES_PER_RANK_LOW, CORES_PER_RANK_MINIMUM

BINDS_EACH_RANK = ("slurm", "mpi")
"""Launchers that start every rank with an affinity of its own."""


@check("HST009", Row.SLOW, needs=(Host,), uses=USES, tags=("container", "cpu"))
def cpu_share(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks have too few processors

    What: Divides the processors that the control group's quota (cpu.max), the affinity (Cpus_allowed) and
        the machine leave by the local ranks. Less than one for each GPU rank fails, less than four is
        a warning.
    Why: Each rank launches kernels from one thread, runs backward in another and feeds itself from
        DataLoader workers. Below one core the GPUs wait for launches, collectives wait for the slowest
        rank, and a throttled process can pass NCCL's timeout.
    Fix: Raise the quota (docker run --cpus, the pod's limits, --cpus-per-task of srun) or start fewer
        ranks; set OMP_NUM_THREADS to the cores of one rank.
    Sources: Linux kernel documentation, cgroup v2, cpu.max; sched_getaffinity(2); Slurm srun(1),
        --cpus-per-task; torchrun documentation, OMP_NUM_THREADS.
    """
    host, ranks = facts[Host], max(local_ranks(facts, options), 1)
    shares = _shares(host, ranks, facts.find(Scheduler))
    if not shares:
        yield skip("the number of usable processors could not be read", enable="/proc/self/status")
        return
    each, limit = min(shares)
    found = f"{each:.1f} processors for each of {ranks} local rank{'s' if ranks != 1 else ''} ({limit})"
    subject = Subject(variable=limit.split(" ", 1)[0].rstrip(","))
    if each >= CORES_PER_RANK_LOW:
        yield ok(found)
    elif visible_gpus(facts) == 0:
        yield info(found) if each < CORES_PER_RANK_MINIMUM else ok(found)
    elif each < CORES_PER_RANK_MINIMUM:
        yield fail(found, "at least one, better four or more", subject=subject, fix=_fix(limit))
    else:
        yield warn(
            found, f"{CORES_PER_RANK_LOW:.0f} or more with a DataLoader", subject=subject, fix=_fix(limit)
        )


def _shares(host: Host, ranks: int, scheduler: Scheduler | None) -> list[tuple[float, str]]:
    """(Processors for each rank, what limits them) for every limit that is known."""
    found: list[tuple[float, str]] = []
    if host.cgroup.cpu_quota is not None and host.cgroup.cpu_quota > 0:
        quota = host.cgroup.cpu_quota
        found.append((quota / ranks, f"cpu.max, or cpu.cfs_quota_us of version 1, allows {quota:g}"))
    if host.cpus_allowed is not None and host.cpus_allowed > 0:
        own = (
            scheduler is not None
            and scheduler.local_rank is not None
            and scheduler.launcher in BINDS_EACH_RANK
            and (host.cpus_online is None or host.cpus_allowed < host.cpus_online)
        )
        each = host.cpus_allowed / (1 if own else ranks)
        whose = " of this rank alone" if own else ""
        found.append((each, f"Cpus_allowed{whose} is {host.cpus_allowed} of {host.cpus_online or '?'}"))
    if host.cpus_online is not None and host.cpus_online > 0:
        found.append((host.cpus_online / ranks, f"the machine has {host.cpus_online}"))
    return found


def _fix(limit: str) -> Fix:
    if limit.startswith("cpu.max"):
        text = (
            "Raise the container's CPU limit (docker run --cpus=…, resources.limits.cpu of the pod) "
            "to several cores for each rank, or start fewer ranks"
        )
    elif limit.startswith("Cpus_allowed"):
        text = (
            "Widen the affinity: srun --cpus-per-task, --cpuset-cpus of the container, or the taskset or "
            "numactl in front of the launcher"
        )
    else:
        text = "Start fewer ranks on this machine"
    return Fix(f"{text}; set OMP_NUM_THREADS to the cores of one rank", risk=Risk.DISRUPTIVE)
