"""Who keeps the others waiting, by where each rank stands.

In a hang most ranks stand in the same collective: they wait. The culprit is the one that does not: stopped,
gone, in a loader, in its own code, or in another collective. Where all stand in the same collective, nobody
on this host is at fault that stacks could show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.diagnosis.live.grouping import name
from fsdp_doctor.diagnosis.live.words import does, ranks, they, where
from fsdp_doctor.subjects.stacks import (
    ALL_WAIT,
    COLLECTIVE,
    DATA,
    ELSEWHERE,
    GONE,
    GPU,
    LOADING,
    LOCK,
    NOT_SEEN,
    SAVE,
    STOPPED,
    WORKING,
    GpuLoad,
    LiveConclusion,
    LiveJob,
    RankProcess,
    StackGroup,
)

BUSY_PERCENT = 90
WAITING_POWER = 0.45
"""Share of its power limit below which a busy GPU only waits: a collective's kernel spins."""
WAITS = (COLLECTIVE, GPU)


def conclude(job: LiveJob) -> tuple[LiveConclusion, ...]:
    """What the two looks say, the likeliest cause first."""
    found = [*_stopped(job), *_gone(job)]
    named = {r for c in found for r in c.ranks}
    if not named:
        found += _by_place(job)
    found += _unseen(job)
    return tuple(found)


def _stopped(job: LiveJob) -> Iterator[LiveConclusion]:
    stopped = [p for p in job.processes if p.state in ("T", "t")]
    blocked = [p for p in job.processes if p.state == "D" and not p.moving and _idle(p)]
    others = tuple(name(p) for p in job.processes if p not in stopped and _is_waiting(p))
    if stopped:
        numbers = tuple(name(p) for p in stopped)
        by = (
            "a debugger"
            if all(p.state == "t" for p in stopped)
            else "SIGSTOP (Ctrl-Z, a debugger, the scheduler)"
        )
        yield LiveConclusion(
            STOPPED,
            f"{ranks(numbers)} {they(numbers, 'is', 'are')} stopped by {by}: process "
            f"{', '.join(str(p.pid) for p in stopped)} {they(numbers, 'is', 'are')} in state "
            f"{stopped[0].state}; {_standing(stopped)}",
            numbers,
            others,
            fix="Let it go on, and find out who stopped it",
            command=f"kill -CONT {' '.join(str(p.pid) for p in stopped)}",
        )
    for process in blocked:
        channel = f" (waits in {process.wait_channel})" if process.wait_channel else ""
        yield LiveConclusion(
            ELSEWHERE,
            f"{ranks((name(process),))} hangs in the kernel{channel}: process {process.pid} is in state D, "
            f"as on a dead file server or a lost device; {_standing([process])}",
            (name(process),),
            tuple(r for r in others if r != name(process)),
            fix="Look at the kernel's log and the file system that it waits for",
            command="dmesg -T | tail -50",
        )


def _idle(process: RankProcess) -> bool:
    return process.cpu_seconds is not None and process.cpu_seconds < 0.02


def _is_waiting(process: RankProcess) -> bool:
    return process.place is not None and process.place.kind in WAITS


def _standing(processes: Sequence[RankProcess]) -> str:
    seen = [p for p in processes if p.place is not None and p.threads]
    return f"it {does(seen[0].place)}" if seen and seen[0].place is not None else "its stack cannot be seen"


def _gone(job: LiveJob) -> Iterator[LiveConclusion]:
    ended = tuple(name(p) for p in job.processes if p.state in (None, "Z"))
    expected, known = job.local_world_size, {p.local_rank for p in job.processes if p.local_rank is not None}
    missing: list[int] = []
    if expected is not None and len(known) == len(job.processes) and job.processes:
        offset = next(
            (p.rank - p.local_rank for p in job.processes if p.rank is not None and p.local_rank is not None),
            0,
        )
        missing = [offset + i for i in range(expected) if i not in known]
    numbers = tuple(sorted({*ended, *missing}))
    left = len(job.processes) - len(ended)
    if numbers:
        yield LiveConclusion(
            GONE,
            f"{ranks(numbers)} {they(numbers, 'has', 'have')} no process any more: "
            f"of {expected or len(job.processes)} ranks on this host {left} are left, and they wait for "
            f"{they(numbers, 'it', 'them')}",
            numbers,
            tuple(name(p) for p in job.processes if name(p) not in numbers),
            confidence="medium",
            fix="See how it ended: its log, and the kernel's for out-of-memory kills",
            command="dmesg -T | grep -iE 'killed process|oom'",
        )


def _by_place(job: LiveJob) -> Iterator[LiveConclusion]:
    waiting = [g for g in job.groups if g.place.kind in WAITS]
    others = [g for g in job.groups if g.place.kind not in WAITS]
    crowd = tuple(sorted(m for g in waiting for m in g.members))
    if not job.groups:
        return
    if others and waiting:
        for group in sorted(others, key=lambda g: len(g.members)):
            yield _elsewhere(job, group, crowd, waiting[0])
    elif others:
        yield from _nobody_waits(job, others)
    elif len(waiting) == 1:
        yield _all_wait(job, waiting[0])
    else:
        yield _different_waits(job, waiting)


def _elsewhere(job: LiveJob, group: StackGroup, crowd: tuple[int, ...], wait: StackGroup) -> LiveConclusion:
    members, place = group.members, group.place
    process = next(p for p in job.processes if name(p) in members)
    helpers = "".join(f"; its worker {pid} {does(found)}" for pid, found in process.helpers[:2])
    return LiveConclusion(
        LOADING if place.kind == DATA or _loader_lock(process) else ELSEWHERE,
        f"{ranks(members)} {does(place, len(members))} ({_activity(process)}){helpers}, while {ranks(crowd)} "
        f"{they(crowd, 'waits', 'wait')} in {where(wait.place)}",
        members,
        crowd,
        confidence="high" if len(members) < len(crowd) or len(crowd) >= 1 else "medium",
        file=place.user.file if place.user is not None else None,
        line=place.user.line if place.user is not None else None,
        fix=_fix(place.kind),
    )


def _loader_lock(process: RankProcess) -> bool:
    return process.place is not None and process.place.kind == LOCK and bool(process.helpers)


def _activity(process: RankProcess) -> str:
    used = process.cpu_seconds
    busy = (
        ""
        if used is None
        else "; it computes"
        if used > 0.3
        else "; it uses no processor"
        if used < 0.02
        else ""
    )
    moves = "its stack changes" if process.moving else "its stack does not change"
    return f"process {process.pid}, {moves}{busy}"


def _fix(kind: str) -> str:
    return {
        DATA: "Find out what its loader waits for: storage, one bad sample, a worker that hangs",
        SAVE: "Let every rank take part in the save, or give the group more time while one rank writes",
        LOCK: "Find the thread or process that it waits for",
    }.get(
        kind,
        "See why this rank alone is there: work or a branch that others do not have; every rank has to reach "
        "the same collectives",
    )


def _nobody_waits(job: LiveJob, others: Sequence[StackGroup]) -> Iterator[LiveConclusion]:
    loading = tuple(m for g in others if g.place.kind == DATA for m in g.members)
    moving = any(p.moving or (p.cpu_seconds or 0) > 0.3 for p in job.processes)
    if loading and len(loading) == len(job.processes):
        yield LiveConclusion(
            LOADING,
            f"all {len(loading)} ranks of this host {does(others[0].place, len(loading))}: "
            "the storage or the loader is what they wait for, not each other",
            (),
            loading,
            fix=_fix(DATA),
        )
        return
    yield LiveConclusion(
        WORKING,
        "; ".join(f"{ranks(g.members)} {does(g.place, len(g.members))}" for g in others[:4])
        + (": no rank waits for another" if moving else ": no rank waits in a collective, and none moves"),
        confidence="medium",
    )


def _all_wait(job: LiveJob, group: StackGroup) -> LiveConclusion:
    busy = _busy_gpus(job.gpus)
    world, here = job.world_size, len(job.processes)
    elsewhere = world is not None and world > here
    idle = [g for g in job.gpus if g.utilisation is not None and g.utilisation < 10 and g.ranks]
    suspects = (
        tuple(sorted(r for g in idle for r in g.ranks)) if busy and idle and len(idle) < len(busy) else ()
    )
    if suspects:
        return LiveConclusion(
            ELSEWHERE,
            f"all ranks of this host wait in {where(group.place)}, but the GPU of {ranks(suspects)} is idle "
            f"while the others run a kernel that waits: {_load_words(job.gpus)}",
            suspects,
            tuple(m for m in group.members if m not in suspects),
            confidence="medium",
            fix="See what that rank has not launched: its Flight Recorder shows its last collective",
        )
    asked = (
        f"; the other {world - here} of {world} ranks are on other hosts or of other tasks: look there"
        if elsewhere and world
        else ""
    )
    moving = [p for p in job.processes if p.moving]
    if moving:
        return LiveConclusion(
            WORKING,
            f"{ranks(group.members)} were seen in {where(group.place)}, and "
            f"{ranks([name(p) for p in moving])} moved between two looks{asked}",
            confidence="medium",
        )
    return LiveConclusion(
        ALL_WAIT,
        f"cannot tell: {ranks(group.members)} {they(group.members, 'waits', 'wait')} in {where(group.place)}"
        + (f"; {_load_words(job.gpus)}" if job.gpus else "")
        + (asked or "; none is missing, so that the network or a GPU is what they wait for"),
        (),
        group.members,
        confidence="low",
        fix="Run `fsdp-doctor diagnose --live` on every host of the job, then compare"
        if elsewhere
        else "Read the Flight Recorder dumps and the kernel's log; check links with `fsdp-doctor probe`",
    )


def _different_waits(job: LiveJob, waiting: Sequence[StackGroup]) -> LiveConclusion:
    smallest = min(waiting, key=lambda g: len(g.members))
    largest = waiting[0]
    tie = len(smallest.members) == len(largest.members)
    words = "; ".join(f"{ranks(g.members)} {does(g.place, len(g.members))}" for g in waiting[:4])
    if tie:
        return LiveConclusion(
            ELSEWHERE,
            f"ranks wait for each other in different places: {words}",
            tuple(sorted(m for g in waiting for m in g.members)),
            (),
            confidence="medium",
            fix="Every rank has to call the same collectives in the same order: compare the two places",
        )
    return LiveConclusion(
        ELSEWHERE,
        f"{ranks(smallest.members)} {does(smallest.place, len(smallest.members))}, "
        f"while {ranks(largest.members)} "
        f"{they(largest.members, 'waits', 'wait')} in {where(largest.place)}",
        smallest.members,
        tuple(sorted(m for g in waiting if g is not smallest for m in g.members)),
        confidence="high" if len(waiting) == 2 else "medium",
        file=smallest.place.user.file if smallest.place.user is not None else None,
        line=smallest.place.user.line if smallest.place.user is not None else None,
        fix="Every rank has to call the same collectives in the same order: take this call out of the branch "
        "that this rank alone runs, or let all ranks run it",
    )


def _busy_gpus(gpus: Sequence[GpuLoad]) -> list[GpuLoad]:
    """GPUs that run a kernel all the time and use little power for it."""
    return [
        g
        for g in gpus
        if (g.utilisation or 0) >= BUSY_PERCENT
        and g.power is not None
        and g.limit
        and g.power < WAITING_POWER * g.limit
    ]


def _load_words(gpus: Sequence[GpuLoad]) -> str:
    parts = []
    for gpu in gpus[:8]:
        busy = f"{gpu.utilisation} % busy" if gpu.utilisation is not None else "utilisation not known"
        power = f" at {gpu.power:.0f} W of {gpu.limit:.0f} W" if gpu.power is not None and gpu.limit else ""
        parts.append(f"GPU {gpu.index} is {busy}{power}")
    waits = _busy_gpus(gpus)
    return ", ".join(parts) + (" (a kernel that waits, as a collective does)" if waits else "")


def _unseen(job: LiveJob) -> Iterator[LiveConclusion]:
    hidden = [p for p in job.processes if not p.threads and p.state not in (None, "Z")]
    if hidden:
        numbers = tuple(name(p) for p in hidden)
        yield LiveConclusion(
            NOT_SEEN,
            f"the stack of {ranks(numbers)} cannot be seen: {hidden[0].problem or 'no answer'}",
            (),
            numbers,
            confidence="low",
            fix="Allow it, or start the job by `fsdp-doctor run`, which needs no rights",
            command=hidden[0].remedy,
        )
