"""What keeps one process group from going on: who is not there, or that all are."""

from __future__ import annotations

from fsdp_doctor.diagnosis.flight.history import Group, Job
from fsdp_doctor.diagnosis.flight.operations import is_symmetric
from fsdp_doctor.diagnosis.flight.timing import (
    beginning,
    ended_late,
    fresh,
    late,
    ran_out,
    timed_out,
    without_start,
    young,
)
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import (
    IN_FLIGHT,
    LATE,
    NEVER_ENTERED,
    NO_DUMP,
    NOT_FINISHED,
    NOT_STARTED,
    STALLED,
    UNDECIDED,
)

OLDER = 60 * 10**9
"""Nanoseconds by which a ring must reach further back than an operation to have held it; clocks differ by
less.
"""


def standing(job: Job, group: Group) -> Trouble | None:
    """Who is not in the first collective that is not done, or what keeps all that are."""
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
        return _silence(job, group, silent) if retires else _ended_late(job, group)
    since = beginning(job, group, sequence)
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


def _silence(job: Job, group: Group, silent: tuple[int, ...]) -> Trouble | None:
    """Ranks on gloo that all ended the same operation, well or badly: their ages tell which."""
    if len(group.members) < 2 and not group.absent:
        return None
    last = max(h.last for h in group.histories.values())
    since = beginning(job, group, last)
    waiting = tuple(sorted(r for r, h in group.histories.items() if h.at(last) is not None))
    too_late = late(job, group, last)
    if too_late is not None and not silent:
        rest = tuple(r for r in waiting if r not in too_late[0])
        return Trouble(group, LATE, last, too_late[0], rest, since=since, lag=too_late[1])
    if silent or group.absent:
        if silent and 2 * len(silent) <= len(waiting):
            return Trouble(group, NO_DUMP, last, silent, waiting, silent, since, confidence="medium")
        return Trouble(group, UNDECIDED, last, (), waiting, silent, since, confidence="low")
    if ran_out(job, group, last, waiting):
        return Trouble(group, STALLED, last, (), waiting, since=since, confidence="medium")
    return None


def _ended_late(job: Job, group: Group) -> Trouble | None:
    found = ended_late(job, group)
    if found is None:
        return None
    sequence, ranks, lag = found
    others = tuple(sorted(r for r in group.histories if r not in ranks))
    return Trouble(
        group, LATE, sequence, ranks, others, since=beginning(job, group, sequence), lag=lag,
        finished=tuple(sorted(group.histories)),
    )  # fmt: skip


def _all_in(job: Job, group: Group, sequence: int, waiting: tuple[int, ...], since: int) -> Trouble:
    """Everybody came. Late, stuck in its kernel, never started, under way, or the network."""
    finished = tuple(sorted(r for r in group.histories if r not in waiting))
    too_late = late(job, group, sequence)
    if too_late is not None:
        rest = tuple(r for r in waiting if r not in too_late[0])
        return Trouble(group, LATE, sequence, too_late[0], rest, since=since, lag=too_late[1])
    if fresh(job, group, sequence, waiting) or young(job, group, sequence, waiting):
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
    unstarted = without_start(job, group, sequence, waiting)
    if unstarted:
        rest = tuple(r for r in waiting if r not in unstarted)
        return Trouble(group, NOT_STARTED, sequence, unstarted, rest, since=since, confidence="medium")
    # A work that its watchdog let go of without completion has run into its time-out.
    sure = any(timed_out(job, group, sequence, r) for r in waiting)
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


def _next_waiting(job: Job, group: Group, sequence: int, finished: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(r for r in finished if group.histories[r].undone() is not None)
