"""Who keeps the others waiting, by where each rank stands.

In a hang most ranks stand in the same collective: they wait. The culprit is the one that does not: stopped,
gone, in a loader, in its own code, or in another collective. Where all stand in the same collective, nobody
on this host is at fault that stacks could show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.diagnosis.live.activity import WAITS, activity, is_busy
from fsdp_doctor.diagnosis.live.all_wait import all_wait
from fsdp_doctor.diagnosis.live.grouping import name
from fsdp_doctor.diagnosis.live.process_states import blocked, gone, stopped, unseen
from fsdp_doctor.diagnosis.live.words import does, ranks, they, where
from fsdp_doctor.subjects.stacks import (
    DATA,
    ELSEWHERE,
    LOADING,
    LOCK,
    SAVE,
    WORKING,
    LiveConclusion,
    LiveJob,
    RankProcess,
    StackGroup,
)

MOST_GROUPS, MOST_HELPERS = 4, 2
"""Groups of ranks, and workers of one loader, that a sentence tells of."""
SAME_ORDER = "Every rank has to call the same collectives in the same order: "
FIXES = {
    DATA: "Find out what its loader waits for: storage, one bad sample, a worker that hangs",
    SAVE: "Let every rank take part in the save, or give the group more time while one rank writes",
    LOCK: "Find the thread or process that it waits for",
}
"""By the kind of place where one rank stands alone."""
ALONE = (
    "See why this rank alone is there: work or a branch that others do not have; every rank has to reach "
    "the same collectives"
)


def conclude(job: LiveJob) -> tuple[LiveConclusion, ...]:
    """What the two looks say, the likeliest cause first."""
    found = [*stopped(job), *blocked(job), *gone(job)]
    if not any(c.ranks for c in found):
        found += _by_place(job)
    return (*found, *unseen(job))


def _by_place(job: LiveJob) -> Iterator[LiveConclusion]:
    waiting = [g for g in job.groups if g.place.kind in WAITS]
    others = [g for g in job.groups if g.place.kind not in WAITS]
    if others and waiting:
        for group in sorted(others, key=lambda g: len(g.members)):
            yield _elsewhere(job, group, waiting)
    elif others:
        yield _nobody_waits(job, others)
    elif len(waiting) == 1:
        yield all_wait(job, waiting[0])
    elif waiting:
        yield _different_waits(waiting)


def _elsewhere(job: LiveJob, group: StackGroup, waiting: Sequence[StackGroup]) -> LiveConclusion:
    """Ranks that do something else while others wait for them."""
    members, place, crowd = group.members, group.place, _members(waiting)
    process = next(p for p in job.processes if name(p) in members)
    workers = "".join(f"; its worker {pid} {does(found)}" for pid, found in process.helpers[:MOST_HELPERS])
    return LiveConclusion(
        LOADING if place.kind == DATA or _waits_for_workers(process) else ELSEWHERE,
        f"{ranks(members)} {does(place, len(members))} ({activity(process)}){workers}, while {ranks(crowd)} "
        f"{they(crowd, 'waits', 'wait')} in {where(waiting[0].place)}",
        members,
        crowd,
        file=place.user.file if place.user is not None else None,
        line=place.user.line if place.user is not None else None,
        fix=FIXES.get(place.kind, ALONE),
    )


def _waits_for_workers(process: RankProcess) -> bool:
    return process.place is not None and process.place.kind == LOCK and bool(process.helpers)


def _nobody_waits(job: LiveJob, groups: Sequence[StackGroup]) -> LiveConclusion:
    loading = tuple(m for g in groups if g.place.kind == DATA for m in g.members)
    if loading and len(loading) == len(job.processes):
        return LiveConclusion(
            LOADING,
            f"all {len(loading)} ranks of this host {does(groups[0].place, len(loading))}: "
            "the storage or the loader is what they wait for, not each other",
            (),
            loading,
            fix=FIXES[DATA],
        )
    moving = any(p.moving or is_busy(p) for p in job.processes)
    end = "no rank waits for another" if moving else "no rank waits in a collective, and none moves"
    return LiveConclusion(WORKING, f"{_places(groups)}: {end}", confidence="medium")


def _different_waits(groups: Sequence[StackGroup]) -> LiveConclusion:
    """All wait, and not in the same collective: the fewest are the odd ones, if they are fewer."""
    largest, fewest = groups[0], min(groups, key=lambda g: len(g.members))
    if len(fewest.members) == len(largest.members):
        return LiveConclusion(
            ELSEWHERE,
            f"ranks wait for each other in different places: {_places(groups)}",
            _members(groups),
            (),
            confidence="medium",
            fix=f"{SAME_ORDER}compare the two places",
        )
    user = fewest.place.user
    return LiveConclusion(
        ELSEWHERE,
        f"{ranks(fewest.members)} {does(fewest.place, len(fewest.members))}, while {ranks(largest.members)} "
        f"{they(largest.members, 'waits', 'wait')} in {where(largest.place)}",
        fewest.members,
        _members([g for g in groups if g is not fewest]),
        confidence="high" if len(groups) == 2 else "medium",
        file=user.file if user is not None else None,
        line=user.line if user is not None else None,
        fix=f"{SAME_ORDER}take this call out of the branch that this rank alone runs, or let all "
        "ranks run it",
    )


def _members(groups: Sequence[StackGroup]) -> tuple[int, ...]:
    return tuple(sorted(m for g in groups for m in g.members))


def _places(groups: Sequence[StackGroup]) -> str:
    return "; ".join(f"{ranks(g.members)} {does(g.place, len(g.members))}" for g in groups[:MOST_GROUPS])
