"""What keeps one process group from going on: who is not there, or that all are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from fsdp_doctor.diagnosis.flight.divergence import Divergence, diverge
from fsdp_doctor.diagnosis.flight.history import Group, Job, has_start_times
from fsdp_doctor.diagnosis.flight.operations import is_symmetric, size_key, type_key
from fsdp_doctor.diagnosis.flight.sites import user_frame
from fsdp_doctor.subjects.flight import (
    COMPLETED,
    IN_FLIGHT,
    LATE,
    NEVER_ENTERED,
    NO_DUMP,
    NOT_FINISHED,
    NOT_STARTED,
    OTHER_DTYPE,
    OTHER_OPERATION,
    OTHER_SIZE,
    RETIRED,
    STALLED,
    STARTED,
    UNDECIDED,
)

FRESH = 5.0
"""Seconds: work that is younger when its dump is written is under way, not stuck."""
LATE_SHARE = 0.8
"""Of the time-out: a rank that comes later than this after the others has used it up."""
YOUNG_SHARE = 0.9
"""Of the time-out: a gloo operation that is younger may still end well."""
LATE_SECONDS = 300.0
"""What makes a rank late where no time-out was recorded."""
LOOK_BACK = 64
"""Operations from which the difference between two ranks' clocks is taken."""
OLDER = 60 * 10**9
"""Nanoseconds by which a ring must reach further back than an operation to have held it; clocks differ by
less.
"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One group that stands still (or went on with wrong data)."""

    group: Group
    kind: str
    sequence: int
    at_fault: tuple[int, ...]
    waiting: tuple[int, ...]
    """Ranks whose own operation at `sequence` is not done."""
    silent: tuple[int, ...] = ()
    since: int = 0
    """Nanoseconds: when the first of them came."""
    divergence: Divergence | None = None
    lag: float = 0.0
    """Seconds that a late rank came after the others."""
    finished: tuple[int, ...] = ()
    """Ranks that are through with the operation."""
    pair: tuple[int, int] | None = None
    """Sender and receiver, of point-to-point operations."""
    passed: bool = False
    """The operation that differs ended on all ranks."""
    confidence: str = "high"


def examine(job: Job, group: Group) -> tuple[Trouble, ...]:
    """What is wrong with the collectives of a group; empty where nothing is."""
    if not group.histories:
        return ()
    found: list[Trouble] = []
    divergence = diverge(job, group)
    if divergence is not None:
        odd = _mismatch(job, group, divergence)
        found.append(odd)
        if not odd.passed:
            return tuple(found)
    standing = _standing(job, group)
    if standing is not None:
        found.append(standing)
    return tuple(found)


def _mismatch(job: Job, group: Group, divergence: Divergence) -> Trouble:
    sequence = divergence.sequence
    operations, states = {}, {}
    for rank in (r for side in divergence.sides for r in side):
        index = group.histories[rank].at(sequence)
        if index is not None:
            operations[rank] = job.operation(rank, index)
            states[rank] = job.dumps[rank].entries.state[index]
    first = operations[divergence.sides[0][0]]
    other = operations[divergence.sides[1][0]]
    if first.name != other.name:
        kind = OTHER_OPERATION
    elif size_key(first) != size_key(other):
        kind = OTHER_OPERATION if _called_elsewhere(job, group, divergence) else OTHER_SIZE
    elif type_key(first) != type_key(other):
        kind = OTHER_DTYPE
    else:  # members of a coalesced group
        kind = OTHER_OPERATION
    passed = divergence.shift == 0 and all((s & 3) == COMPLETED for s in states.values())
    waiting = tuple(sorted(r for r in operations if r not in divergence.odd))
    silent = tuple(sorted(set(group.members) - job.dumps.keys()))
    confidence = "high" if divergence.by == "majority" else "medium"
    return Trouble(
        group, kind, sequence, divergence.odd, waiting, silent, _since(job, group, sequence), divergence,
        passed=passed, confidence=confidence,
    )  # fmt: skip


def _called_elsewhere(job: Job, group: Group, divergence: Divergence) -> bool:
    """Whether the sides called from different lines: then they differ in what they call, not in its size."""
    frames = []
    for side in divergence.sides[:2]:
        index = group.histories[side[0]].at(divergence.sequence)
        site = job.source.sites[job.dumps[side[0]].entries.site[index]] if index is not None else ()
        frames.append(user_frame(site))
    return None not in frames and frames[0] != frames[1]


def _standing(job: Job, group: Group) -> Trouble | None:
    members = set(group.members)
    dumped = members & job.dumps.keys() if group.members else set(group.histories)
    silent = tuple(sorted(members - dumped))
    enqueued = {r: n for r in dumped if (n := _enqueued(job, group, r)) is not None}
    undone = [u for h in group.histories.values() if (u := h.undone()) is not None]
    sequence = min(undone, default=None)
    lowest = min(enqueued.values(), default=0)
    retires = _ends_by_retiring(job, group)
    if sequence is None and retires and lowest < max(enqueued.values(), default=0):
        sequence = lowest + 1
    if sequence is None:
        return _silence(job, group, silent) if retires else None
    since = _since(job, group, sequence)
    missing = tuple(sorted(r for r, n in enqueued.items() if n < sequence))
    missing = tuple(r for r in missing if not _lost(job, group, r, since) and not _too_early(job, r, since))
    waiting = _waiting(group, sequence, ended=retires and bool(missing or silent))
    if not waiting:
        return None
    common = {"silent": silent, "since": since}
    if missing:
        return Trouble(group, NEVER_ENTERED, sequence, missing, waiting, **common)  # type: ignore[arg-type]
    if silent or group.absent:
        many = len(silent) + group.absent > len(dumped)
        kind, confidence = (UNDECIDED, "low") if many or not silent else (NO_DUMP, "medium")
        return Trouble(
            group,
            kind,
            sequence,
            () if many else silent,
            waiting,
            confidence=confidence,
            **common,  # type: ignore[arg-type]
        )
    return _all_in(job, group, sequence, waiting, since)


def _ends_by_retiring(job: Job, group: Group) -> bool:
    return any(job.gloo(r, i) for r, h in group.histories.items() if (i := h.at(h.last)) is not None)


def _enqueued(job: Job, group: Group, rank: int) -> int | None:
    """The last collective a rank enqueued; None where its ring may have lost it."""
    history = group.histories.get(rank)
    recorded = group.recorded.get(rank)
    own = history.last if history is not None else 0
    counted = recorded.enqueued if recorded is not None and recorded.enqueued is not None else None
    # gloo counts sends and receives among them, and so does NCCL where a group does both.
    usable = (
        counted is not None
        and rank not in group.p2p
        and (history is None or not _gloo(job, rank, history.at(own)))
    )
    if usable and counted is not None:
        return max(own, counted)
    return own


def _gloo(job: Job, rank: int, index: int | None) -> bool:
    return index is not None and job.gloo(rank, index)


def _lost(job: Job, group: Group, rank: int, since: int) -> bool:
    """Whether a rank without entries in a group may have had one that its ring has overwritten."""
    dump = job.dumps[rank]
    if rank in group.histories or dump.first_record == 0 or not len(dump.entries):
        return False
    return dump.entries.created[0] > since - OLDER


def _too_early(job: Job, rank: int, since: int) -> bool:
    """Whether a rank's dump was written before the others came to the operation."""
    dump = job.dumps[rank]
    newest = dump.entries.created[-1] if len(dump.entries) else 0
    if dump.modified is None or not newest / 1e9 <= dump.modified:
        return False
    return dump.modified < since / 1e9 - 1.0


def _waiting(group: Group, sequence: int, *, ended: bool) -> tuple[int, ...]:
    """Ranks that have not done their part; with `ended` also those whose gloo operation ended, well or
    badly.
    """
    found = []
    for rank, history in group.histories.items():
        index = history.at(sequence)
        if index is not None and (ended or not history.done[sequence - history.first]):
            found.append(rank)
    return tuple(sorted(found))


def _since(job: Job, group: Group, sequence: int) -> int:
    times = [
        job.dumps[r].entries.created[i]
        for r, h in group.histories.items()
        if (i := h.at(sequence)) is not None
    ]
    return min((t for t in times if t > 0), default=0)


def _silence(job: Job, group: Group, silent: tuple[int, ...]) -> Trouble | None:
    """Ranks on gloo that all ended the same operation, well or badly: their ages tell which."""
    if len(group.members) < 2 and not group.absent:
        return None
    last = max(h.last for h in group.histories.values())
    since = _since(job, group, last)
    waiting = tuple(sorted(r for r, h in group.histories.items() if h.at(last) is not None))
    late = _late(job, group, last)
    if late is not None and not silent:
        return Trouble(
            group,
            LATE,
            last,
            late[0],
            tuple(r for r in waiting if r not in late[0]),
            since=since,
            lag=late[1],
        )
    ran_out = _ran_out(job, group, last, waiting)
    if silent or group.absent:
        if silent and 2 * len(silent) <= len(waiting):
            return Trouble(group, NO_DUMP, last, silent, waiting, silent, since, confidence="medium")
        return Trouble(group, UNDECIDED, last, (), waiting, silent, since, confidence="low")
    if ran_out:
        return Trouble(group, STALLED, last, (), waiting, since=since, confidence="medium")
    return None


def _ran_out(job: Job, group: Group, sequence: int, ranks: Collection[int]) -> bool:
    """Whether the dumps were written about a time-out after the operation began."""
    ages = []
    for rank in ranks:
        index = group.histories[rank].at(sequence)
        recorded, modified = group.recorded.get(rank), job.dumps[rank].modified
        if index is None or recorded is None or not recorded.timeout_ms or modified is None:
            return False
        age, timeout = modified - job.dumps[rank].entries.created[index] / 1e9, recorded.timeout_ms / 1000
        ages.append(0.95 * timeout <= age <= 1.1 * timeout + 1.0)
    return bool(ages) and all(ages)


def _all_in(job: Job, group: Group, sequence: int, waiting: tuple[int, ...], since: int) -> Trouble:
    """Everybody came. Late, stuck in its kernel, never started, under way, or the network."""
    finished = tuple(sorted(r for r in group.histories if r not in waiting))
    late = _late(job, group, sequence)
    if late is not None:
        rest = tuple(r for r in waiting if r not in late[0])
        return Trouble(group, LATE, sequence, late[0], rest, since=since, lag=late[1])
    if _fresh(job, group, sequence, waiting) or _young(job, group, sequence, waiting):
        return Trouble(
            group, IN_FLIGHT, sequence, (), waiting, since=since, finished=finished, confidence="medium"
        )
    on_gloo = _ends_by_retiring(job, group)
    if finished and len(waiting) <= len(finished) and not on_gloo:
        index = group.histories[waiting[0]].at(sequence)
        sure = index is not None and is_symmetric(job.operation(waiting[0], index))
        confidence = "medium" if sure else "low"
        return Trouble(
            group, NOT_FINISHED, sequence, waiting, _next_waiting(job, group, sequence, finished),
            since=since, finished=finished, confidence=confidence,
        )  # fmt: skip
    unstarted = _unstarted(job, group, sequence, waiting)
    if unstarted:
        rest = tuple(r for r in waiting if r not in unstarted)
        return Trouble(group, NOT_STARTED, sequence, unstarted, rest, since=since, confidence="medium")
    # A work that its watchdog let go of without completion has run into its time-out.
    sure = any(_timed_out(job, group, sequence, r) for r in waiting)
    return Trouble(
        group,
        STALLED,
        sequence,
        (),
        waiting,
        since=since,
        finished=finished,
        confidence="high" if sure else "medium",
    )


def _young(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> bool:
    """Whether gloo's operation was younger than its time-out: only time tells a wait from a failure there."""
    for rank in waiting:
        index, modified = group.histories[rank].at(sequence), job.dumps[rank].modified
        recorded = group.recorded.get(rank)
        if index is None or modified is None or recorded is None or not recorded.timeout_ms:
            return False
        age = modified - job.dumps[rank].entries.created[index] / 1e9
        if not job.gloo(rank, index) or not -1.0 <= age < YOUNG_SHARE * recorded.timeout_ms / 1000:
            return False
    return True


def _timed_out(job: Job, group: Group, sequence: int, rank: int) -> bool:
    index = group.histories[rank].at(sequence)
    if index is None or job.gloo(rank, index):
        return False
    state = job.dumps[rank].entries.state[index]
    return bool(state & RETIRED) and (state & 3) != COMPLETED


def _next_waiting(job: Job, group: Group, sequence: int, finished: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(r for r in finished if group.histories[r].undone() is not None)


def _unstarted(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> tuple[int, ...]:
    """Ranks whose kernel never started while others' did, where the recorders notice starts at all."""
    started: list[int] = []
    scheduled: list[int] = []
    for rank in waiting:
        index = group.histories[rank].at(sequence)
        if index is None or not has_start_times(job.dumps[rank]):
            continue
        (started if (job.dumps[rank].entries.state[index] & 3) == STARTED else scheduled).append(rank)
    # A rank whose earlier operations all ended and whose recorder has no `started` left shows by its peers.
    others = [r for r in waiting if r not in started and r not in scheduled]
    if started and len(started) > len(others) + len(scheduled):
        return tuple(sorted(scheduled + others))
    return ()


def _late(job: Job, group: Group, sequence: int) -> tuple[tuple[int, ...], float] | None:
    """Ranks that came so late that the others' time-out ran out, and by how many seconds.

    Clocks of hosts differ: what counts is how much later than in the operations before.
    """
    lags = {}
    reference = min(group.histories, key=lambda r: (group.histories[r].first, r))
    for rank in group.histories:
        lag = _lag(job, group, reference, rank, sequence)
        if lag is not None:
            lags[rank] = lag
    if len(lags) < 2:
        return None
    usual = median(sorted(lags.values())[: max(1, len(lags) - 1)])
    timeouts = [g.timeout_ms / 1000 for g in group.recorded.values() if g.timeout_ms]
    bound = LATE_SHARE * min(timeouts) if timeouts else LATE_SECONDS
    late = tuple(sorted(r for r, lag in lags.items() if lag - usual >= bound))
    if not late or len(late) > len(lags) // 2:
        return None
    return late, max(lags[r] for r in late) - usual


def _lag(job: Job, group: Group, reference: int, rank: int, sequence: int) -> float | None:
    mine, theirs = group.histories[rank], group.histories[reference]
    here, there = job.dumps[rank].entries.created, job.dumps[reference].entries.created

    def apart(number: int) -> int | None:
        one, other = mine.at(number), theirs.at(number)
        return None if one is None or other is None else here[one] - there[other]

    now = apart(sequence)
    if now is None:
        return None
    before = [
        d for n in range(max(mine.first, sequence - LOOK_BACK), sequence) if (d := apart(n)) is not None
    ]
    return (now - (median(before) if before else 0)) / 1e9


def _fresh(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> bool:
    for rank in waiting:
        index, modified = group.histories[rank].at(sequence), job.dumps[rank].modified
        if index is None or modified is None or _timed_out(job, group, sequence, rank):
            return False
        age = modified - job.dumps[rank].entries.created[index] / 1e9
        recorded = group.recorded.get(rank)
        short = (
            recorded is not None and recorded.timeout_ms is not None and recorded.timeout_ms / 2000 < FRESH
        )
        if short or not -1.0 <= age < FRESH:
            return False
    return True
