"""What the times in dumps tell: whether a rank came late, whether an operation is old enough to be stuck."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

from fsdp_doctor.diagnosis.flight.history import Group, Job, has_start_times
from fsdp_doctor.subjects.flight import COMPLETED, RETIRED, STARTED

FRESH = 5.0
"""Seconds: work that is younger when its dump is written is under way, not stuck."""
LATE_SHARE = 0.8
"""Of the time-out: a rank that comes later than this after the others has used it up."""
YOUNG_SHARE = 0.9
"""Of the time-out: a gloo operation that is younger may still end well."""
LATE_SECONDS = 300.0
"""What makes a rank late where no time-out was recorded."""
ENDED = 4
"""Of the last operations that ended on all ranks, those whose beginnings are compared."""
LOOK_BACK = 64
"""Operations from which the difference between two ranks' clocks is taken."""


def beginning(job: Job, group: Group, sequence: int) -> int:
    """Nanoseconds since the epoch: when the first rank enqueued it, 0 where that is not recorded."""
    times = [
        job.dumps[r].entries.created[i]
        for r, h in group.histories.items()
        if (i := h.at(sequence)) is not None
    ]
    return min((t for t in times if t > 0), default=0)


def ran_out(job: Job, group: Group, sequence: int, ranks: Collection[int]) -> bool:
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


def young(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> bool:
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


def timed_out(job: Job, group: Group, sequence: int, rank: int) -> bool:
    """Whether the rank's watchdog let go of the operation before it ended."""
    index = group.histories[rank].at(sequence)
    if index is None or job.gloo(rank, index):
        return False
    state = job.dumps[rank].entries.state[index]
    return bool(state & RETIRED) and (state & 3) != COMPLETED


def late(
    job: Job, group: Group, sequence: int, share: float = LATE_SHARE
) -> tuple[tuple[int, ...], float] | None:
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
    bound = share * min(timeouts) if timeouts else LATE_SECONDS
    ranks = tuple(sorted(r for r, lag in lags.items() if lag - usual >= bound))
    if not ranks or len(ranks) > len(lags) // 2:
        return None
    return ranks, max(lags[r] for r in ranks) - usual


def ended_late(job: Job, group: Group) -> tuple[int, tuple[int, ...], float] | None:
    """An operation that ended everywhere after some rank's time-out: a rank came later than the whole of it.

    Returns sequence number, late ranks and seconds. NCCL's kernel ends well when the late rank comes at
    last, but the others' watchdogs have given the job up by then.
    """
    if not any(g.timeout_ms for g in group.recorded.values()) or len(group.histories) < 2:
        return None
    last = min(h.last for h in group.histories.values())
    first = max(h.first for h in group.histories.values())
    for sequence in range(last, max(first, last - ENDED), -1):
        found = late(job, group, sequence, share=1.0)
        if found is not None:
            return sequence, *found
    return None


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


def fresh(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> bool:
    """Whether all that wait began only a moment before their dumps were written."""
    for rank in waiting:
        index, modified = group.histories[rank].at(sequence), job.dumps[rank].modified
        if index is None or modified is None or timed_out(job, group, sequence, rank):
            return False
        age = modified - job.dumps[rank].entries.created[index] / 1e9
        recorded = group.recorded.get(rank)
        short = (
            recorded is not None and recorded.timeout_ms is not None and recorded.timeout_ms / 2000 < FRESH
        )
        if short or not -1.0 <= age < FRESH:
            return False
    return True


def without_start(job: Job, group: Group, sequence: int, waiting: tuple[int, ...]) -> tuple[int, ...]:
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
