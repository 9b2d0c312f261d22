"""Open-file limits, of a process and of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import limit_text
from fsdp_doctor.engine.job import USES, local_ranks, node_count
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host, Limit
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.tables.host_thresholds import (
    FILES_OPEN_PERCENT,
    NOFILE_BASE,
    NOFILE_PER_LOCAL_RANK,
    NOFILE_PER_RANK,
    NOFILE_SERVER,
    NOFILE_SERVER_RANKS,
)
from fsdp_doctor.tables.units import percent


@check("HST005", Row.START, needs=(Host,), uses=USES, tags=("limits",))
def open_files(facts: Facts, options: Options) -> Iterator[Finding]:
    """Too few open files are allowed for the ranks

    What: Compares the limit of open files (ulimit -n, nofile) with what one rank opens: sockets to its
        peers, GPU handles, shared memory, DataLoader workers. The need grows with the number of ranks,
        so that the desktop default of 1024 is no fault for a few.
    Why: A rank that can open no more ends with "Too many open files", "received 0 items of ancdata" from
        a DataLoader, or NCCL's "unhandled system error"; it shows first when the job grows.
    Fix: Raise the soft limit with ulimit -n; where the hard limit is too low, raise that one in
        limits.conf, the unit of the scheduler's daemon or the container (--ulimit nofile=…).
    Sources: NCCL user guide, troubleshooting, file descriptors; pytorch notes on multiprocessing,
        file_descriptor sharing.
    """
    limit = facts[Host].limits.get("open files")
    ranks = max(local_ranks(facts, options), 1)
    world = max(_world(facts, options, ranks), ranks)
    need = NOFILE_BASE + NOFILE_PER_LOCAL_RANK * ranks + NOFILE_PER_RANK * world
    if limit is None:
        yield skip("the limit of open files could not be read", enable="/proc/self/limits")
    elif limit.soft is None or limit.soft >= max(need, NOFILE_SERVER):
        yield ok(f"{limit_text(limit.soft)} open files allowed, {world} ranks in the job")
    else:
        yield _judge(limit, limit.soft, need, ranks, world)


def _judge(limit: Limit, soft: int, need: int, ranks: int, world: int) -> Finding:
    found = f"{soft} open files allowed (ulimit -n, nofile; hard limit {limit_text(limit.hard)})"
    jobs = f"{world} ranks, {ranks} of them here"
    raisable = limit.hard is None or limit.hard >= need
    subject = Subject(variable="nofile")
    if soft >= need:
        if ranks < NOFILE_SERVER_RANKS or (limit.hard is None or limit.hard >= NOFILE_SERVER):
            return ok(f"{found} for {jobs}")
        return warn(found, f"{NOFILE_SERVER} or more for {jobs}", subject=subject, fix=_raise(limit, need))
    expected = f"about {need} for {jobs}"
    if not raisable and soft * 2 <= need and ranks > 1:
        return fail(found, expected, subject=subject, fix=_raise(limit, need))
    return warn(found, expected, subject=subject, fix=_raise(limit, need))


def _raise(limit: Limit, need: int) -> Fix:
    wanted = max(need, NOFILE_SERVER)
    if limit.hard is None or limit.hard >= wanted:
        value = limit.hard if limit.hard is not None else wanted
        return Fix("Raise the soft limit in the shell that starts the ranks", f"ulimit -n {value}")
    return Fix(
        "Raise the hard limit: '* - nofile 131072' in /etc/security/limits.conf, LimitNOFILE= of the "
        "scheduler's daemon, or docker run --ulimit nofile=131072:131072",
        risk=Risk.NEEDS_ROOT,
        owner=Owner.ADMIN,
    )


def _world(facts: Facts, options: Options, ranks: int) -> int:
    """Ranks of the whole job, as far as anything says."""
    scheduler = facts.find(Scheduler)
    nodes = node_count(facts, options) or 1
    known = scheduler.world_size if scheduler is not None else None
    return max(known or 0, nodes * ranks)


@check("HST006", Row.START, needs=(Host,), tags=("limits",))
def machine_files(facts: Facts, options: Options) -> Iterator[Finding]:
    """The machine has nearly as many files open as it allows

    What: Compares /proc/sys/fs/file-nr with fs.file-max.
    Why: At the limit every process of every user gets "Too many open files in system", whatever its own
        limit says.
    Fix: Find what leaks descriptors, or raise fs.file-max.
    Sources: Linux kernel documentation, sysctl/fs; gpud.
    """
    host = facts[Host]
    if host.file_max is None or host.files_open is None or host.file_max <= 0:
        yield skip("the number of open files could not be read", enable="/proc/sys/fs/file-nr")
        return
    used = percent(host.files_open, host.file_max)
    found = f"{host.files_open} files open of fs.file-max {host.file_max} ({used} %)"
    if used >= FILES_OPEN_PERCENT:
        text = "Find the process with the most descriptors in /proc/*/fd, or raise fs.file-max"
        fix = Fix(text, f"sudo sysctl -w fs.file-max={host.file_max * 2}", Risk.NEEDS_ROOT, Owner.ADMIN)
        subject = Subject(variable="fs.file-max")
        yield warn(found, f"below {FILES_OPEN_PERCENT} %", subject=subject, fix=fix)
    else:
        yield ok(found)
