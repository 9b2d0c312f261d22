"""What is wrong with the collectives of one group: operations that differ, and why it stands."""

from __future__ import annotations

from fsdp_doctor.diagnosis.flight.divergence import Divergence, diverge
from fsdp_doctor.diagnosis.flight.history import Group, Job
from fsdp_doctor.diagnosis.flight.operations import size_key, type_key
from fsdp_doctor.diagnosis.flight.sites import user_frame
from fsdp_doctor.diagnosis.flight.standing import standing
from fsdp_doctor.diagnosis.flight.timing import beginning
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import COMPLETED, OTHER_DTYPE, OTHER_OPERATION, OTHER_SIZE


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
    stands = standing(job, group)
    if stands is not None:
        found.append(stands)
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
        group, kind, sequence, divergence.odd, waiting, silent, beginning(job, group, sequence), divergence,
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
