"""Sends without their receives, and the reverse."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fsdp_doctor.diagnosis.flight.history import Group, Job
from fsdp_doctor.diagnosis.flight.operations import is_coalesced_end, numel
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import (
    COMPLETED,
    NO_DUMP,
    OTHER_DTYPE,
    OTHER_SIZE,
    RETIRED,
    STALLED,
    UNMATCHED,
)


@dataclass(frozen=True, slots=True)
class _Side:
    """What one end of a pair posted: entry indices in order."""

    all: tuple[int, ...]
    undone: tuple[int, ...]


def examine_pairs(job: Job, group: Group) -> tuple[Trouble, ...]:
    """Pairs of ranks in a group whose sends and receives do not meet."""
    sends, receives = _posted(job, group)
    found = []
    for pair in sorted(sends.keys() | receives.keys()):
        trouble = _judge(job, group, pair, sends.get(pair, _Side((), ())), receives.get(pair, _Side((), ())))
        if trouble is not None:
            found.append(trouble)
    return tuple(found)


def _posted(job: Job, group: Group) -> tuple[dict[tuple[int, int], _Side], dict[tuple[int, int], _Side]]:
    kinds: dict[str, dict[tuple[int, int], tuple[list[int], list[int]]]] = {
        "send": defaultdict(lambda: ([], [])),
        "recv": defaultdict(lambda: ([], [])),
    }
    for rank, indices in group.p2p.items():
        done = _done(job, rank, indices)
        for index in indices:
            operation = job.operation(rank, index)
            if operation.name not in kinds or operation.source is None or operation.target is None:
                continue
            pair = _global(group, operation.source), _global(group, operation.target)
            if pair[0 if operation.name == "send" else 1] != rank:
                continue
            every, undone = kinds[operation.name][pair]
            every.append(index)
            if not done[index]:
                undone.append(index)
    sides = [{p: _Side(tuple(a), tuple(u)) for p, (a, u) in kinds[k].items()} for k in ("send", "recv")]
    return sides[0], sides[1]


def _global(group: Group, member: int) -> int:
    return group.members[member] if 0 <= member < len(group.members) else member


def _done(job: Job, rank: int, indices: tuple[int, ...]) -> dict[int, bool]:
    """State per entry; members of a coalesced group have the state of the entry that closes it."""
    entries = job.dumps[rank].entries
    closed = {entries.sequence[i]: i for i in indices if is_coalesced_end(job.operation(rank, i))}
    done = {}
    for index in indices:
        state = entries.state[closed.get(entries.sequence[index], index)]
        done[index] = (state & 3) == COMPLETED or (job.gloo(rank, index) and bool(state & RETIRED))
    return done


def _judge(job: Job, group: Group, pair: tuple[int, int], sent: _Side, received: _Side) -> Trouble | None:
    source, target = pair
    if not sent.undone and not received.undone:
        return None
    waiting = tuple(sorted({r for r, side in ((source, sent), (target, received)) if side.undone}))
    first = min(
        job.dumps[r].entries.created[side.undone[0]]
        for r, side in ((source, sent), (target, received))
        if side.undone
    )
    rank, side = (target, received) if received.undone else (source, sent)
    sequence = job.dumps[rank].entries.sequence[side.undone[0]]
    base = {"since": first, "pair": pair}
    absent = [r for r in pair if r not in job.dumps]
    if absent:
        return Trouble(
            group,
            NO_DUMP,
            sequence,
            tuple(absent),
            waiting,
            tuple(absent),
            confidence="medium",
            **base,  # type: ignore[arg-type]
        )
    whole = job.dumps[source].first_record == 0 and job.dumps[target].first_record == 0
    if received.undone and _short(sent, received, whole):
        return Trouble(group, UNMATCHED, sequence, (source,), (target,), **base)  # type: ignore[arg-type]
    if sent.undone and _short(received, sent, whole):
        return Trouble(group, UNMATCHED, sequence, (target,), (source,), **base)  # type: ignore[arg-type]
    if sent.undone and received.undone:
        one, other = job.operation(source, sent.undone[0]), job.operation(target, received.undone[0])
        mine, theirs = numel(one.inputs or one.outputs), numel(other.outputs or other.inputs)
        if mine != theirs:
            return Trouble(group, OTHER_SIZE, sequence, (), pair, confidence="medium", **base)  # type: ignore[arg-type]
        types = set(one.input_types or one.output_types), set(other.output_types or other.input_types)
        if types[0] and types[1] and types[0] != types[1]:
            return Trouble(group, OTHER_DTYPE, sequence, (), pair, confidence="medium", **base)  # type: ignore[arg-type]
        return Trouble(group, STALLED, sequence, (), pair, confidence="medium", **base)  # type: ignore[arg-type]
    return None


def _short(lacking: _Side, other: _Side, whole: bool) -> bool:
    """Whether one side posted less: by count where both rings hold everything, else by what is pending."""
    if whole:
        return len(lacking.all) < len(other.all)
    return not lacking.undone
