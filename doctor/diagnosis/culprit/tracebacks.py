"""Whose traceback differs: ranks that gave up waiting at another place of the program than the majority."""

from __future__ import annotations

import re

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import in_save
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.majority import minority
from fsdp_doctor.diagnosis.culprit.proofs import proof
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import VICTIM
from fsdp_doctor.tables import log_conclusions as codes

ENOUGH = 3
"""Tracebacks from which one that differs is the odd one."""
OVER = re.compile(r"\b(?:end|done|finish\w*|complet\w*|exhaust\w*|over)\b", re.I)
"""Last words of a rank that ran out of batches."""


def candidates(view: View) -> list[Candidate]:
    """The ranks that stood elsewhere, by the tracebacks of those that waited."""
    stood = {r: view.own_frame_of(r) for r in view.waited | view.lost_peer}
    sites = {r: (own.file, own.line) for r, own in stood.items() if own is not None}
    odd = minority(sites) if len(sites) >= ENOUGH else frozenset()
    if not odd:
        return []
    waited = frozenset(sites) - odd
    one = min(odd)
    words = view.last_words(one)
    code = codes.UNEVEN if OVER.search(words) else codes.NEVER_ENTERED
    conclusion = derived(
        code,
        f"{rank_words(odd).capitalize()} did not enter the collective in which {rank_words(waited)} timed "
        "out: "
        f"it was in {phases.frame_words(stood[one])}",
        "high",
        why=(f"Its last words: “{words}”. " if words else "")
        + f"The majority waited in {phases.frame_words(stood[min(waited)])}. {codes.CONCLUSIONS[code].why}",
        culprits=odd,
        victims=waited,
        evidence=(
            proof(h)
            for r in sorted(odd)
            for h in view.hits
            if h.origin.rank == r and h.kind == VICTIM and h.frames
        ),
    )
    return [Candidate(76, in_save(conclusion, view.frames_of(one)), ranks=odd)]
