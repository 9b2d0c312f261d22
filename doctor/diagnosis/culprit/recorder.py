"""What the Flight Recorder's dumps of each process group say."""

from __future__ import annotations

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import in_save
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import at
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Conclusion
from fsdp_doctor.subjects.incident import RecorderConclusion
from fsdp_doctor.tables import log_conclusions as codes

SCORE = {"missing": 87, "mismatch": 88, "unfinished": 76, "stalled": 59}
"""Kinds of conclusions that name a failure."""
UNSURE = 40


def candidates(view: View) -> list[Candidate]:
    """One candidate per process group in which something is wrong."""
    return [_candidate(said) for said in view.incident.recorder if said.kind in SCORE]


def _candidate(said: RecorderConclusion) -> Candidate:
    conclusion = said.conclusion or _conclusion(said)
    if said.ranks:
        conclusion = in_save(conclusion, said.frames)
    score = UNSURE if conclusion.confidence == "low" else SCORE[said.kind]
    return Candidate(score, conclusion, ranks=frozenset(said.ranks))


def _conclusion(said: RecorderConclusion) -> Conclusion:
    code = codes.STALLED if said.kind == "stalled" else codes.RECORDER
    own = phases.own_frame(said.frames)
    what = f"process group {said.group}: {said.operation or 'collective'} #{said.sequence}"
    return derived(
        code,
        said.words[:1].upper() + said.words[1:],
        said.confidence,
        why=codes.CONCLUSIONS[code].why + (f" It stood in {phases.frame_words(own)}." if own else ""),
        culprits=said.ranks,
        victims=(r for r in said.members if r not in said.ranks),
        evidence=(at(origin, origin.rank, what) for origin in said.evidence),
    )
