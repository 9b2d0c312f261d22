"""Causes as conclusions: words, ranks, call sites and the evidence of both sides."""

from __future__ import annotations

from fsdp_doctor.diagnosis.flight.chain import Cause
from fsdp_doctor.diagnosis.flight.history import Job
from fsdp_doctor.diagnosis.flight.recorded import SHOWN, Recorded, ranks_words
from fsdp_doctor.diagnosis.flight.sentences import Sentences
from fsdp_doctor.diagnosis.flight.trouble import Trouble
from fsdp_doctor.subjects.flight import FlightConclusion


class Teller:
    """Writes the conclusions of one job."""

    def __init__(self, job: Job) -> None:
        self._recorded = Recorded(job)
        self._sentences = Sentences(job, self._recorded)

    def conclude(self, cause: Cause) -> FlightConclusion:
        """One cause as a conclusion."""
        trouble = cause.trouble
        words, expected, advice = self._sentences.of(cause)
        fault_site, fault_rank = self._recorded.fault_site(cause)
        wait_site = self._recorded.site(trouble, trouble.waiting)
        evidence = self._recorded.evidence(cause)
        return FlightConclusion(
            cause.kind,
            words,
            expected,
            trouble.group.label,
            trouble.group.members,
            cause.at_fault,
            tuple(r for r in trouble.waiting if r not in cause.at_fault),
            trouble.silent,
            trouble.sequence,
            self._recorded.operation(trouble, trouble.waiting or cause.at_fault),
            trouble.confidence,
            fault_site or wait_site,
            fault_rank,
            wait_site,
            evidence,
            tuple(dict.fromkeys(map(_consequence, cause.consequences)))[:SHOWN],
            advice,
        )


def _consequence(trouble: Trouble) -> str:
    at = f"#{trouble.sequence} of group {trouble.group.label}"
    if trouble.pair is not None:
        at = f"{trouble.pair[0]}->{trouble.pair[1]} of group {trouble.group.label}"
    ranks = trouble.waiting or trouble.at_fault
    return f"{ranks_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {at} because of it"
