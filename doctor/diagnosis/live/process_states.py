"""Whose process does not go on: stopped, hanging in the kernel, or gone; and whose stack cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.diagnosis.live.activity import is_idle, is_waiting
from fsdp_doctor.diagnosis.live.grouping import name
from fsdp_doctor.diagnosis.live.words import does, ranks, they
from fsdp_doctor.subjects.stacks import (
    ELSEWHERE,
    GONE,
    NOT_SEEN,
    STOPPED,
    LiveConclusion,
    LiveJob,
    RankProcess,
)

BY_SIGNAL, BY_DEBUGGER, IN_KERNEL, ZOMBIE = "T", "t", "D", "Z"
"""The kernel's letters for states in which a process does not go on."""
HELD = (BY_SIGNAL, BY_DEBUGGER)


def names(processes: Sequence[RankProcess]) -> tuple[int, ...]:
    """What the processes are called in a conclusion."""
    return tuple(name(p) for p in processes)


def stopped(job: LiveJob) -> Iterator[LiveConclusion]:
    """Processes that a signal or a debugger holds."""
    held = [p for p in job.processes if p.state in HELD]
    if not held:
        return
    numbers, pids = names(held), [str(p.pid) for p in held]
    by = "SIGSTOP (Ctrl-Z, a debugger, the scheduler)"
    if all(p.state == BY_DEBUGGER for p in held):
        by = "a debugger"
    are = they(numbers, "is", "are")
    yield LiveConclusion(
        STOPPED,
        f"{ranks(numbers)} {are} stopped by {by}: process {', '.join(pids)} {are} in state {held[0].state}; "
        f"{_standing(held)}",
        numbers,
        names([p for p in job.processes if p not in held and is_waiting(p)]),
        fix="Let it go on, and find out who stopped it",
        command=f"kill -CONT {' '.join(pids)}",
    )


def blocked(job: LiveJob) -> Iterator[LiveConclusion]:
    """Processes that hang inside a system call, one conclusion for each."""
    for process in job.processes:
        if process.state != IN_KERNEL or process.moving or not is_idle(process):
            continue
        channel = f" (waits in {process.wait_channel})" if process.wait_channel else ""
        yield LiveConclusion(
            ELSEWHERE,
            f"{ranks((name(process),))} hangs in the kernel{channel}: process {process.pid} is in state "
            f"{IN_KERNEL}, as on a dead file server or a lost device; {_standing([process])}",
            (name(process),),
            names([p for p in job.processes if p is not process and p.state not in HELD and is_waiting(p)]),
            fix="Look at the kernel's log and the file system that it waits for",
            command="dmesg -T | tail -50",
        )


def gone(job: LiveJob) -> Iterator[LiveConclusion]:
    """Ranks of this host that ended while others are left."""
    ended = names([p for p in job.processes if p.state in (None, ZOMBIE)])
    numbers = tuple(sorted({*ended, *_never_seen(job)}))
    if not numbers:
        return
    expected, left = job.local_world_size or len(job.processes), len(job.processes) - len(ended)
    yield LiveConclusion(
        GONE,
        f"{ranks(numbers)} {they(numbers, 'has', 'have')} no process any more: of {expected} ranks on this "
        f"host {left} are left, and they wait for {they(numbers, 'it', 'them')}",
        numbers,
        tuple(r for r in names(job.processes) if r not in numbers),
        confidence="medium",
        fix="See how it ended: its log, and the kernel's for out-of-memory kills",
        command="dmesg -T | grep -iE 'killed process|oom'",
    )


def _never_seen(job: LiveJob) -> list[int]:
    """Ranks that the launcher started here and that have no process, where all others know their number."""
    known = {p.local_rank for p in job.processes if p.local_rank is not None}
    if job.local_world_size is None or not job.processes or len(known) != len(job.processes):
        return []
    firsts = (p.rank - p.local_rank for p in job.processes if p.rank is not None and p.local_rank is not None)
    first = next(firsts, 0)
    return [first + i for i in range(job.local_world_size) if i not in known]


def unseen(job: LiveJob) -> Iterator[LiveConclusion]:
    """Processes that run and whose stack nobody may look at."""
    hidden = [p for p in job.processes if not p.threads and p.state not in (None, ZOMBIE)]
    if not hidden:
        return
    numbers = names(hidden)
    yield LiveConclusion(
        NOT_SEEN,
        f"the stack of {ranks(numbers)} cannot be seen: {hidden[0].problem or 'no answer'}",
        (),
        numbers,
        confidence="low",
        fix="Allow it, or start the job by `fsdp-doctor run`, which needs no rights",
        command=hidden[0].remedy,
    )


def _standing(processes: Sequence[RankProcess]) -> str:
    place = next((p.place for p in processes if p.place is not None and p.threads), None)
    return f"it {does(place)}" if place is not None else "its stack cannot be seen"
