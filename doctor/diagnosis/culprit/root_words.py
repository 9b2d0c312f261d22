"""The conclusion of lines that name a cause: title, reason, row, fix and proofs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.blame import is_inside
from fsdp_doctor.diagnosis.culprit.lines import DCP_FAILED, UNKNOWN_EXCEPTION
from fsdp_doctor.diagnosis.culprit.proofs import proof, unique_proofs
from fsdp_doctor.diagnosis.culprit.sentence import sentence
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.wording import particulars
from fsdp_doctor.diagnosis.culprit.words import Words, capital, rank_words
from fsdp_doctor.findings import Row
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_signatures import Scope, Signature

TRACED = 5
"""What a traceback, the end of a process, adds to a line's weight."""
CONFIDENT = 70
LAUNCHER = re.compile(r"/bin/[\w.-]+$|\brunpy\b")
"""Files of commands that start a program: their frames say nothing of it."""
ENDED = (Row.START, Row.LOAD, Row.SAVE)
"""Rows of errors that end a rank: who had them is told, to blame or not."""
BY_PHASE = {phases.SAVE: "save", phases.LOAD: "load"}
"""Rows of errors that belong to none by themselves."""
OF_OTHERS = re.compile(r"\b(?:all|the) others?\b|\bother ranks\b", re.I)
SENTENCES = re.compile(r"(?<=\.) ")


def conclusion(view: View, signature: Signature, hits: Sequence[Hit], culprits: frozenset[int]) -> Conclusion:
    """What these lines, which belong together, say; `culprits` are the ranks at fault."""
    first = max(hits, key=lambda h: (len(h.frames), len(h.fields), -h.order))
    words = particulars(view, hits, first, _general(signature, hits))
    words = _with_row(view, signature, first, words)
    words = _with_ranks(view, signature, hits, culprits, words)
    peer = next((h.fields["peer"] for h in hits if h.fields.get("peer")), None)
    device = first.fields.get("bus") or first.fields.get("dev")
    return Conclusion(
        code=words.code,
        title=words.title,
        row=words.row,
        confidence=_confidence(view, signature, first),
        why=f"{_raised_in(first)}{words.why}".strip(),
        culprits=tuple(sorted(culprits)),
        host=peer or next((h.origin.host for h in hits if h.origin.host), None),
        device=device if signature.scope is Scope.DEVICE else None,
        evidence=_proofs(first, hits),
        fixes=words.fixes,
        explained=tuple(dict.fromkeys((words.code, *(h.code for h in hits)))),
    )


def _general(signature: Signature, hits: Sequence[Hit]) -> Words:
    said = sentence(signature, hits)
    return Words(
        code=signature.code,
        title=capital(said) if said else signature.title,
        why=signature.why,
        fixes=(Remedy(signature.fix, signature.command),),
        row=signature.row.value if signature.row is not None else None,
    )


def _with_row(view: View, signature: Signature, first: Hit, words: Words) -> Words:
    """An error that may happen anywhere belongs to what the program was doing: a save or a load."""
    if words.row is not None or words.code != signature.code:
        return words
    return replace(words, row=BY_PHASE.get(_outer_phase(view, first) or view.phase_of_hit(first) or ""))


def _outer_phase(view: View, hit: Hit) -> str | None:
    """What a distributed checkpoint was doing whose list of failures holds this line."""
    outer = next((h for h in view.hits if h.code == DCP_FAILED and h.frames and is_inside(h, hit)), None)
    return phases.of_frames(outer.frames) if outer is not None else None


def _with_ranks(
    view: View, signature: Signature, hits: Sequence[Hit], culprits: frozenset[int], words: Words
) -> Words:
    """The title with the ranks at fault, else with those that had the error."""
    printed = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    title, why = words.title, words.why
    if culprits:
        who = rank_words(culprits).capitalize()
        title = title if title.startswith(who) else f"{who}: {title}"
    elif signature.scope is Scope.RANK and len(printed) > 1:
        title += f" (on {rank_words(printed)}: the program or its configuration, not one rank)"
        if not view.suffering:
            why = " ".join(x for x in SENTENCES.split(why) if not OF_OTHERS.search(x))
    elif signature.row in ENDED and printed and printed < view.ranks | view.expected:
        title += f" (on {rank_words(printed)})"
    return replace(words, title=title, why=why)


def _raised_in(first: Hit) -> str:
    """Where in the program the error was raised, and inside which library's function."""
    frames = [f for f in first.frames if not LAUNCHER.search(f.file)]
    own = phases.own_frame(frames)
    if own is None:
        return ""
    inside = "" if own is frames[-1] else f", inside {frames[-1].function}"
    return f"It was raised in {phases.frame_words(own)}{inside}. "


def _confidence(view: View, signature: Signature, first: Hit) -> str:
    if signature.code == UNKNOWN_EXCEPTION and first.frames and (view.consequences or view.failed_exits):
        return "high"  # it ended its process
    weight = signature.weight + (TRACED if first.frames else 0)
    return "high" if weight >= CONFIDENT else "medium"


def _proofs(first: Hit, hits: Sequence[Hit]) -> tuple[Proof, ...]:
    """The best line, then one line of each other rank, then the rest of them up to a few."""
    others = {h.origin.rank: h for h in reversed(hits) if h.origin.rank != first.origin.rank}
    rest = hits[: 2 if others else 3]
    return unique_proofs(proof(h) for h in (first, *reversed(others.values()), *rest))
