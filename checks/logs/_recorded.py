"""Findings of what Flight Recorder dumps conclude; shared by the checks that speak of one kind each."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.findings import Confidence, Evidence, Finding, Fix, Status, Subject, skip
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.flight import FlightConclusion, FlightVerdict
from fsdp_doctor.tables.recorder_causes import CAUSES

SHOWN = 8


def of(verdict: FlightVerdict, code: str) -> tuple[FlightConclusion, ...]:
    """The conclusions that a code speaks of."""
    return tuple(c for c in verdict.conclusions if c.kind in CAUSES and CAUSES[c.kind].code == code)


def findings(facts: Facts, code: str) -> Iterator[Finding]:
    """A finding for each of them: a failure for the cause, a warning for what is independent of it."""
    verdict = facts[FlightVerdict]
    if not verdict.dumped:
        yield skip("no dump could be read")
        return
    diagnosis = facts.find(Diagnosis)
    cause = diagnosis.cause if diagnosis is not None else None
    told_by_logs = cause is not None and not cause.code.startswith("LOG9") and cause.confidence == "high"
    for conclusion in of(verdict, code):
        status = Status.FAIL if conclusion is verdict.conclusions[0] else Status.WARN
        if told_by_logs:  # the logs say why this rank did not come: the dumps confirm it
            status = Status.INFO
        yield Finding(
            status,
            conclusion.words,
            conclusion.expected,
            " ".join((conclusion.advice, *conclusion.consequences)).strip(),
            Subject(rank=_subject(conclusion.ranks)),
            fix_of(conclusion),
            confidence=Confidence(conclusion.confidence),
            evidence=tuple(Evidence(file, text) for file, _, text in conclusion.evidence),
        )


def _subject(ranks: tuple[int, ...]) -> int | tuple[int, ...] | None:
    return None if not ranks else ranks[0] if len(ranks) == 1 else ranks


def fix_of(conclusion: FlightConclusion) -> Fix:
    """What to do about one."""
    cause = CAUSES[conclusion.kind]
    return Fix(cause.fix, cause.command)


def ranks_words(ranks: tuple[int, ...]) -> str:
    """Such as "rank 3" or "ranks 0, 3, 5"."""
    listed = ", ".join(map(str, ranks[:SHOWN])) + (
        f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    )
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"
