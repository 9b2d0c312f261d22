"""From all ways to a culprit to the conclusions: the cause first, then what is independent of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit import (
    accounted,
    collectives,
    exits,
    loading,
    memory,
    mismatch,
    named,
    own_time,
    pace,
    ras,
    recorder,
    roots,
    silent,
    stands,
    tracebacks,
)
from fsdp_doctor.diagnosis.culprit.candidate import Candidate
from fsdp_doctor.diagnosis.culprit.ranking import is_independent, ranked, supported
from fsdp_doctor.diagnosis.culprit.states import rank_states
from fsdp_doctor.diagnosis.culprit.undecided import cannot_tell, hedged, sockets
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.summary import notes, summary, timeline
from fsdp_doctor.subjects.diagnosis import Conclusion, Diagnosis
from fsdp_doctor.subjects.incident import Incident

WAYS: tuple[Callable[[View], list[Candidate]], ...] = (
    roots.candidates,
    mismatch.candidates,
    collectives.candidates,
    exits.candidates,
    silent.candidates,
    tracebacks.candidates,
    named.candidates,
    accounted.candidates,
    recorder.candidates,
    stands.candidates,
    ras.candidates,
    pace.candidates,
    own_time.candidates,
    loading.candidates,
    memory.candidates,
)
"""Of candidates with equal scores, those of an earlier way come first."""
MAX_CONCLUSIONS = 6
CONFIDENCE = ("high", "medium", "low")


def conclude(incident: Incident) -> Diagnosis:
    """Draw the conclusions. Pure: the same incident gives the same diagnosis."""
    attempts = _attempts(incident)
    found: dict[tuple[str, tuple[int, ...]], Conclusion] = {}
    for view in reversed(attempts):
        for conclusion in _judged(view):
            found.setdefault((conclusion.code, conclusion.culprits), conclusion)
    conclusions = list(found.values())
    if len(attempts) > 1:
        conclusions.sort(key=lambda c: CONFIDENCE.index(c.confidence))
    told = tuple(conclusions[:MAX_CONCLUSIONS])
    states = rank_states(incident, told)
    return Diagnosis(
        conclusions=told,
        ranks=states,
        summary=summary(incident, told, states),
        timeline=timeline(incident),
        notes=notes(incident),
    )


def _attempts(incident: Incident) -> list[View]:
    """What each start of the job left behind, the first one first."""
    origins = (*(h.origin for h in incident.hits), *(e.origin for e in incident.exits))
    numbers = {o.attempt for o in origins} or {0}
    return [
        View(
            incident,
            number,
            tuple(h for h in incident.hits if h.origin.attempt == number),
            tuple(e for e in incident.exits if e.origin.attempt == number),
        )
        for number in sorted(numbers)
    ]


def _judged(view: View) -> list[Conclusion]:
    """The cause of one attempt's failure, and failures beside it."""
    found = [candidate for way in WAYS for candidate in way(view)]
    if not found:
        return [_placed(view, c) for c in (cannot_tell(view), sockets(view)) if c is not None][:1]
    best, *others = ranked(view, found)
    cause = memory.supported(view, _placed(view, supported(view, best, others)))
    beside = [c.conclusion for c in others if is_independent(view, best, c)]
    return [hedged(cause), *(_placed(view, c) for c in beside)]


def _placed(view: View, conclusion: Conclusion) -> Conclusion:
    """A conclusion with its attempt, and with the host and the victims that follow from its culprits."""
    culprits = conclusion.culprits
    return replace(
        conclusion,
        host=conclusion.host or (view.incident.job.hosts.get(culprits[0]) if culprits else None),
        victims=conclusion.victims or tuple(sorted(view.suffering - set(culprits))),
        attempt=view.attempt,
    )
