"""A verdict in the terms of an incident: what the culprit search takes as evidence, and conclusions by
itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.diagnosis.flight.recorded import ranks_words
from fsdp_doctor.diagnosis.flight.sites import place
from fsdp_doctor.subjects import diagnosis, incident
from fsdp_doctor.subjects.flight import (
    CROSSED,
    FINISHED,
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
    CallSite,
    FlightConclusion,
    FlightVerdict,
)
from fsdp_doctor.tables.recorder_causes import CAUSES

KINDS: Mapping[str, str] = {
    NEVER_ENTERED: "missing",
    UNMATCHED: "missing",
    CROSSED: "missing",
    LATE: "missing",
    NO_DUMP: "missing",
    OTHER_OPERATION: "mismatch",
    OTHER_SIZE: "mismatch",
    OTHER_DTYPE: "mismatch",
    NOT_FINISHED: "unfinished",
    NOT_STARTED: "unfinished",
    STALLED: "stalled",
    FINISHED: "healthy",
    IN_FLIGHT: "healthy",
    UNDECIDED: "unknown",
}
"""Kind of a `FlightConclusion` -> kind of a `RecorderConclusion`."""
SHORT = 160
RECORD_NEXT = (
    "dumps of all ranks: fsdp-doctor run -- COMMAND sets TORCH_FR_BUFFER_SIZE, TORCH_NCCL_DUMP_ON_TIMEOUT "
    "and one "
    "folder for all dumps",
)


def recorder_conclusions(verdict: FlightVerdict) -> tuple[incident.RecorderConclusion, ...]:
    """The verdict as evidence beside logs, the cause first."""
    return tuple(
        incident.RecorderConclusion(
            c.group,
            KINDS[c.kind],
            c.ranks,
            c.members,
            c.sequence,
            c.operation,
            c.words,
            c.expected,
            c.confidence,
            tuple(incident.Origin(file, rank=rank) for file, rank, _ in c.evidence),
            _frames(c.site),
            c.silent,
            _conclusion(c) if c.kind in CAUSES else None,
        )
        for c in verdict.conclusions
    )


def conclusions(verdict: FlightVerdict) -> tuple[diagnosis.Conclusion, ...]:
    """The verdict as conclusions of a diagnosis that has nothing but the dumps; none for a healthy job."""
    return tuple(_conclusion(c) for c in verdict.conclusions if c.kind in CAUSES)


def _conclusion(c: FlightConclusion) -> diagnosis.Conclusion:
    cause = CAUSES[c.kind]
    alternatives = c.consequences
    sure = c.kind != UNDECIDED
    return diagnosis.Conclusion(
        cause.code,
        title(c),
        None if cause.row is None else cause.row.value,
        c.confidence if sure else "low",
        " ".join(part for part in (sentence(c.words), c.advice) if part),
        c.ranks,
        victims=c.waiting,
        evidence=tuple(diagnosis.Proof(file, 0, rank, None, text) for file, rank, text in c.evidence),
        fixes=(diagnosis.Remedy(cause.fix, cause.command),),
        alternatives=alternatives,
        record_next=() if sure and c.kind != NO_DUMP else RECORD_NEXT,
    )


def title(c: FlightConclusion) -> str:
    """Who and what in one short line."""
    who = ranks_words(c.ranks) if c.ranks else ""
    what = f"{c.operation} #{c.sequence}" if c.sequence is not None else c.operation
    at = f"{what} of group {c.group}"
    texts = {
        NEVER_ENTERED: f"{who} never entered {at}",
        OTHER_OPERATION: f"{who or 'ranks'} called another collective than the others in place of {at}",
        OTHER_SIZE: f"{who or 'ranks'} called {at} with another size",
        OTHER_DTYPE: f"{who or 'ranks'} called {at} with another type",
        STALLED: f"all ranks entered {at} and nobody finished it: network or device",
        NOT_FINISHED: f"{who} did not finish {at}, which the others did",
        NOT_STARTED: f"the GPU of {who} never started {at}",
        NO_DUMP: f"{who} left no dump while the others wait in {at}",
        CROSSED: f"{who or 'ranks'} and the others wait for each other in two groups ({c.group})",
        LATE: f"{who} came to {at} after the others' time-out",
        UNMATCHED: f"{who} never posted the other half of {at}",
        UNDECIDED: f"cannot tell from the dumps who is at fault in {at}"
        if c.group
        else "cannot tell: nothing was recorded",
    }
    text = texts.get(c.kind, c.words)[: 2 * SHORT]
    return text[:1].upper() + text[1:] if c.kind != UNDECIDED else text


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".") if words else ""


def inputs(verdict: FlightVerdict) -> tuple[incident.Input, ...]:
    """The files that were read as dumps, and those that could not be."""
    read = [incident.Input(d.path, "flight recorder", d.bytes, d.entries, d.cut) for d in verdict.files]
    unread = [incident.Input(u.path, "unread", problem=u.problem) for u in verdict.unread]
    return (*read, *unread)


def rank_states(verdict: FlightVerdict) -> tuple[diagnosis.RankState, ...]:
    """One per rank: at fault, waiting, silent or through."""
    cause = verdict.conclusions[0] if verdict.conclusions else None
    at_fault = set(cause.ranks) if cause else set()
    recorded = {r.rank: r for r in verdict.ranks}
    states = []
    for rank in verdict.world:
        last = recorded.get(rank)
        if last is None:
            states.append(diagnosis.RankState(rank, diagnosis.SILENT))
            continue
        waits = last.state in ("scheduled", "started") or (cause is not None and rank in cause.waiting)
        state = diagnosis.FAILED if rank in at_fault else diagnosis.WAITING if waits else diagnosis.RUNNING
        states.append(
            diagnosis.RankState(
                rank,
                state,
                last.created or None,
                collective=f"{last.operation} #{last.sequence} of group {last.group} ({last.state})"
                + (f" at {where}" if (where := place(last.site)) else ""),
            )
        )
    return tuple(states)


def _frames(site: CallSite) -> tuple[incident.Frame, ...]:
    return tuple(incident.Frame(f.function, f.file, f.line) for f in reversed(site))
