"""The dumps of a job to a verdict: groups one by one, then what follows from what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fsdp_doctor.diagnosis.flight.chain import causes
from fsdp_doctor.diagnosis.flight.examining import examine
from fsdp_doctor.diagnosis.flight.history import Group, Job, arrange
from fsdp_doctor.diagnosis.flight.pairs import examine_pairs
from fsdp_doctor.diagnosis.flight.wording import Teller
from fsdp_doctor.subjects.flight import (
    COMPLETED,
    FINISHED,
    RETIRED,
    STARTED,
    UNDECIDED,
    DumpFile,
    FlightConclusion,
    FlightDumps,
    FlightVerdict,
    RecordedRank,
)

CONCLUSIONS = 8


def judge(dumps: FlightDumps) -> FlightVerdict:
    """What the dumps amount to, the cause first."""
    job = arrange(dumps)
    troubles = [t for g in job.groups for t in (*examine(job, g), *examine_pairs(job, g))]
    teller = Teller(job)
    conclusions = tuple(teller.conclude(c) for c in causes(job, troubles)[:CONCLUSIONS]) or _nothing_wrong(
        job
    )
    return FlightVerdict(
        conclusions,
        tuple(_last(job, rank) for rank in sorted(job.dumps) if len(job.dumps[rank].entries)),
        job.world,
        tuple(sorted(job.dumps)),
        _by({r: d.version for r, d in job.dumps.items()}),
        _by({r: d.library for r, d in job.dumps.items() if d.library}),
        {r: d.cut for r, d in job.dumps.items() if d.cut},
        dumps.unread,
        dumps.notes,
        sum(len(d.entries) for d in job.dumps.values()),
        tuple(DumpFile(d.path, r, d.bytes, len(d.entries), d.cut) for r, d in sorted(job.dumps.items())),
        tuple(r for r, d in sorted(job.dumps.items()) if d.first_record > 0),
    )


def _nothing_wrong(job: Job) -> tuple[FlightConclusion, ...]:
    if not job.dumps:
        return ()
    if not any(len(d.entries) for d in job.dumps.values()):
        return (
            FlightConclusion(
                UNDECIDED,
                "cannot tell: the dumps hold no operations; the recorder was off or the ranks never "
                "communicated",
                "recorded operations",
                confidence="low",
                advice="Set TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8).",
            ),
        )
    group = max(job.groups, key=_reached)
    number = _reached(group)
    missing = tuple(r for r in job.world if r not in job.dumps)
    return (
        FlightConclusion(
            FINISHED,
            f"everything that {len(job.dumps)} of {len(job.world)} ranks recorded ended; nobody waits"
            + (f" (last: #{number} of group {group.label})" if number else ""),
            group=group.label,
            members=group.members,
            silent=missing,
            sequence=number,
            confidence="medium" if missing else "high",
        ),
    )


def _reached(group: Group) -> int:
    return max((h.last for h in group.histories.values()), default=0)


def _last(job: Job, rank: int) -> RecordedRank:
    """The operation in which the rank waits, else its last one."""
    dump = job.dumps[rank]
    entries = dump.entries
    index = len(entries) - 1
    for n in range(max(0, len(entries) - 256), len(entries)):
        gloo = job.gloo(rank, n)
        if (entries.state[n] & 3) != COMPLETED and not (gloo and entries.state[n] & RETIRED):
            index = n
            break
    operation, state = job.operation(rank, index), entries.state[index]
    group = dump.groups[entries.group[index]]
    word = "completed" if (state & 3) == COMPLETED else "started" if (state & 3) == STARTED else "scheduled"
    if operation.backend == "gloo" and state & RETIRED:
        word = "ended"
    name = group.name if group.description in ("", "undefined") else f"{group.name} ({group.description})"
    return RecordedRank(
        rank,
        name,
        entries.sequence[index],
        operation.name,
        word,
        entries.created[index] / 1e9,
        job.source.sites[entries.site[index]],
    )


def _by(values: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        found[value].append(rank)
    return {v: tuple(r) for v, r in found.items()}


def describe(verdict: FlightVerdict) -> Sequence[str]:
    """The verdict in plain lines, for logs and tests."""
    return [f"{c.kind} {list(c.ranks)} [{c.confidence}] {c.words}" for c in verdict.conclusions]
