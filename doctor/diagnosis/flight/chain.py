"""Which group's trouble is the cause of which other's: who waits for whom, followed to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_doctor.diagnosis.flight.history import Job
from fsdp_doctor.diagnosis.flight.operations import is_coalesced_end
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import (
    CROSSED,
    IN_FLIGHT,
    LATE,
    NEVER_ENTERED,
    NO_DUMP,
    NOT_FINISHED,
    NOT_STARTED,
    OTHER_DTYPE,
    OTHER_OPERATION,
    OTHER_SIZE,
    STALLED,
    UNDECIDED,
    UNMATCHED,
)

STRENGTH = (
    OTHER_OPERATION,
    OTHER_SIZE,
    OTHER_DTYPE,
    CROSSED,
    NEVER_ENTERED,
    UNMATCHED,
    LATE,
    NO_DUMP,
    NOT_FINISHED,
    NOT_STARTED,
    STALLED,
    UNDECIDED,
    IN_FLIGHT,
)
"""Of causes that do not depend on each other, what is proven before what is inferred."""
_FOLLOWS = (NEVER_ENTERED, UNMATCHED, STALLED, NOT_STARTED, NOT_FINISHED)
"""Kinds that another group's trouble can bring about."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A trouble that no other explains, and those that it explains."""

    trouble: Trouble
    kind: str
    at_fault: tuple[int, ...]
    consequences: tuple[Trouble, ...] = ()
    crossed_with: Trouble | None = None


def causes(job: Job, troubles: Sequence[Trouble]) -> tuple[Cause, ...]:
    """The causes, the best proven and then the earliest first."""
    needs = [_explained_by(job, t, troubles) for t in troubles]
    found = [
        Cause(t, t.kind, _free(job, t, troubles)) for t, need in zip(troubles, needs, strict=True) if not need
    ]
    found += [_crossing(troubles, circle) for circle in _circles(needs)]
    with_consequences = [_with_consequences(c, troubles, needs) for c in found]
    ordered = sorted(with_consequences, key=_order)
    return _merged(ordered)


def _order(cause: Cause) -> tuple[int, int, int]:
    trouble = cause.trouble
    strength = STRENGTH.index(cause.kind) + (len(STRENGTH) if trouble.passed else 0)
    # Proof by what ranks did outranks inference; among what ranks did, the earliest is the cause.
    proven = 0 if strength < STRENGTH.index(LATE) else 1 if strength < STRENGTH.index(STALLED) else 2
    return (proven + (3 if trouble.passed else 0), trouble.since, strength)


def _explained_by(job: Job, trouble: Trouble, troubles: Sequence[Trouble]) -> frozenset[int]:
    """Troubles that keep this one's missing ranks (or, where nobody is missing, its waiting ones) busy."""
    if trouble.kind not in _FOLLOWS:
        return frozenset()
    if trouble.kind in (NEVER_ENTERED, UNMATCHED):
        found = [_blocking(job, rank, trouble, troubles, None) for rank in trouble.at_fault]
        if found and all(f is not None for f in found):
            return frozenset(f for f in found if f is not None)
        return frozenset()
    # All are in: one whose stream holds an older operation of another group cannot run this one.
    suspects = trouble.at_fault or trouble.waiting
    found = []
    for rank in suspects:
        index = _entry(job, trouble, rank)
        # Sends and receives are often posted together: those of one batch end together too.
        before = None if trouble.pair is not None else index
        found.append(None if index is None else _blocking(job, rank, trouble, troubles, before))
    return frozenset(f for f in found if f is not None)


def _free(job: Job, trouble: Trouble, troubles: Sequence[Trouble]) -> tuple[int, ...]:
    """Of the ranks that are missing, those that no other group keeps waiting."""
    if trouble.kind not in (NEVER_ENTERED, UNMATCHED):
        return trouble.at_fault
    return tuple(r for r in trouble.at_fault if _blocking(job, r, trouble, troubles, None) is None)


def _blocking(
    job: Job, rank: int, trouble: Trouble, troubles: Sequence[Trouble], before: int | None
) -> int | None:
    """The other trouble in which a rank waits longest; `before` limits it to entries before that one."""
    best: tuple[int, int] | None = None
    for number, other in enumerate(troubles):
        if other is trouble or not _held(other, rank) or other.kind == IN_FLIGHT or other.passed:
            continue
        index = _entry(job, other, rank)
        if index is None or (before is not None and index >= before):
            continue
        if best is None or index < best[0]:
            best = (index, number)
    return None if best is None else best[1]


def _held(trouble: Trouble, rank: int) -> bool:
    """Whether a rank is inside the operation that does not end; in a mismatch the odd ranks are too."""
    return rank in trouble.waiting or (trouble.divergence is not None and rank in trouble.at_fault)


def _entry(job: Job, trouble: Trouble, rank: int) -> int | None:
    """Index in its dump of the entry with which a rank takes part."""
    if trouble.pair is None:
        history = trouble.group.histories.get(rank)
        return None if history is None else history.at(trouble.sequence)
    entries = job.dumps[rank].entries if rank in job.dumps else None
    if entries is None:
        return None
    for index in trouble.group.p2p.get(rank, ()):
        if entries.sequence[index] >= trouble.sequence and not is_coalesced_end(job.operation(rank, index)):
            return index
    return None


def _circles(needs: Sequence[frozenset[int]]) -> list[tuple[int, ...]]:
    """Sets of troubles that explain each other and that nothing outside explains."""
    reach = [_reach(needs, n) for n in range(len(needs))]
    circles: dict[tuple[int, ...], None] = {}
    for number, reached in enumerate(reach):
        if number not in reached:
            continue
        circle = frozenset(m for m in reached if number in reach[m])
        if reached == circle:
            circles[tuple(sorted(circle))] = None
    return list(circles)


def _reach(needs: Sequence[frozenset[int]], start: int) -> frozenset[int]:
    seen: set[int] = set()
    todo = list(needs[start])
    while todo:
        number = todo.pop()
        if number not in seen:
            seen.add(number)
            todo += needs[number]
    return frozenset(seen)


def _crossing(troubles: Sequence[Trouble], circle: tuple[int, ...]) -> Cause:
    first, second = sorted((troubles[n] for n in circle), key=lambda t: t.since)[:2]
    fewest, most = sorted((first, second), key=lambda t: len(t.waiting))
    odd = fewest.waiting if len(fewest.waiting) < len(most.waiting) else ()
    return Cause(most, CROSSED, odd, crossed_with=fewest)


def _with_consequences(cause: Cause, troubles: Sequence[Trouble], needs: Sequence[frozenset[int]]) -> Cause:
    own = [n for n, t in enumerate(troubles) if t is cause.trouble or t is cause.crossed_with]
    follow = [t for n, t in enumerate(troubles) if n not in own and any(o in _reach(needs, n) for o in own)]
    return Cause(cause.trouble, cause.kind, cause.at_fault, tuple(follow), cause.crossed_with)


def _merged(ordered: Sequence[Cause]) -> tuple[Cause, ...]:
    """One cause per set of ranks: one that is missing from several groups is one fault."""
    kept: list[Cause] = []
    for cause in ordered:
        same = next(
            (
                n
                for n, k in enumerate(kept)
                if cause.at_fault and not cause.trouble.passed and set(cause.at_fault) <= set(k.at_fault)
            ),
            None,
        )
        if same is None:
            kept.append(cause)
        else:
            k = kept[same]
            kept[same] = Cause(
                k.trouble,
                k.kind,
                k.at_fault,
                (*k.consequences, cause.trouble, *cause.consequences),
                k.crossed_with,
            )
    return tuple(kept)
