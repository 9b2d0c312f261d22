"""The conclusion of lines that name a cause: title, reason, row, fix and proofs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Formatter

from fsdp_doctor.diagnosis import oom, phases
from fsdp_doctor.diagnosis.culprit.blame import is_inside
from fsdp_doctor.diagnosis.culprit.lines import CUDA_OOM, DCP_FAILED, UNKNOWN_EXCEPTION
from fsdp_doctor.diagnosis.culprit.proofs import proof, unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.wording import particulars
from fsdp_doctor.diagnosis.culprit.words import Words, capital, rank_words
from fsdp_doctor.findings import Row
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS, OOM_AT_SAVE
from fsdp_doctor.tables.log_signatures import Scope, Signature

TRACED = 5
"""What a traceback, the end of a process, adds to a line's weight."""
CONFIDENT = 70
MORE_ROOM = Remedy(
    "Let the doctor say what each change to sharding, precision, batch or checkpointing saves for this model",
    "fsdp-doctor dryrun --model … --batch … --world-size N",
)
LAUNCHER = re.compile(r"/bin/[\w.-]+$|\brunpy\b")
"""Files of commands that start a program: their frames say nothing of it."""
ENDED = (Row.START, Row.LOAD, Row.SAVE)
"""Rows of errors that end a rank: who had them is told, to blame or not."""
OF_OTHERS = re.compile(r"\b(?:all|the) others?\b|\bother ranks\b", re.I)
SENTENCES = re.compile(r"(?<=\.) ")


def conclusion(view: View, signature: Signature, hits: Sequence[Hit], culprits: frozenset[int]) -> Conclusion:
    """What these lines, which belong together, say; `culprits` are the ranks at fault."""
    first = max(hits, key=lambda h: (len(h.frames), len(h.fields), -h.order))
    title = _sentence(signature, hits)
    title = capital(title) if title else signature.title
    fixes = [Remedy(signature.fix, signature.command)]
    why, row, code = signature.why, signature.row.value if signature.row else None, signature.code
    frames = [f for f in first.frames if not LAUNCHER.search(f.file)]
    own = phases.own_frame(frames)
    phase = phases.of_frames(first.frames) or (
        view.phase_of(first.origin.rank) if first.origin.rank is not None else None
    )
    alternatives: list[str] = []
    if signature.code in CUDA_OOM:
        report = oom.report(first)
        if "allocate" not in title and report.requested is not None:
            title += f": tried to allocate {oom.words(report.requested)}"
        says, advice = oom.sub_diagnosis(report, phase, oom.on_one_gpu(oom.report(h) for h in hits))
        fixes = [*(Remedy(a) for a in advice), *(fixes if not advice else (MORE_ROOM,))]
        why = "".join(f"{s[0].upper()}{s[1:]}. " for s in says) + why
        if phase == phases.SAVE:
            kind = CONCLUSIONS[OOM_AT_SAVE]
            code, row = OOM_AT_SAVE, kind.row.value if kind.row else None
            title = f"Out of memory while saving: {title}"
            fixes = [Remedy(kind.fix, kind.command), *fixes]
    words = particulars(view, hits, first, Words(title, why, tuple(fixes), row))
    title, why, fixes, row = words.title, words.why, list(words.fixes), words.row
    if signature.row is None and row is None and code == signature.code:
        row = {phases.SAVE: "save", phases.LOAD: "load"}.get(_outer_phase(view, first) or phase or "")
    printed = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    if culprits:
        who = rank_words(culprits).capitalize()
        title = title if title.startswith(who) else f"{who}: {title}"
    elif signature.scope is Scope.RANK and len(printed) > 1:
        title += f" (on {rank_words(printed)}: the program or its configuration, not one rank)"
        if not view.suffering:
            why = " ".join(x for x in SENTENCES.split(why) if not OF_OTHERS.search(x))
    elif signature.row in ENDED and printed and printed < view.ranks | view.expected:
        title += f" (on {rank_words(printed)})"
    if own is not None:
        inside = "" if own is frames[-1] else f", inside {frames[-1].function}"
        why = f"It was raised in {phases.frame_words(own)}{inside}. {why}".strip()
    host = next((h.fields["peer"] for h in hits if h.fields.get("peer")), None)
    host = host or next((h.origin.host for h in hits if h.origin.host), None)
    if host is None and culprits:
        host = view.incident.job.hosts.get(min(culprits))
    score = signature.weight + (TRACED if first.frames else 0)
    if signature.code == UNKNOWN_EXCEPTION and first.frames and (view.consequences or view.failed_exits):
        score = CONFIDENT
    return Conclusion(
        code=code,
        title=title,
        row=row,
        confidence="high" if score >= CONFIDENT else "medium",
        why=why,
        culprits=tuple(sorted(culprits)),
        host=host,
        device=first.fields.get("bus") or first.fields.get("dev")
        if signature.scope is Scope.DEVICE
        else None,
        victims=tuple(sorted(view.suffering - culprits)),
        evidence=_proofs(view, first, hits),
        fixes=tuple(fixes),
        alternatives=tuple(alternatives),
        explained=tuple(dict.fromkeys((code, *(h.code for h in hits)))),
    )


def _proofs(view: View, first: Hit, hits: Sequence[Hit]) -> tuple[Proof, ...]:
    """The best line, then one line of each other rank, then the rest of them up to a few."""
    others = {h.origin.rank: h for h in reversed(hits) if h.origin.rank != first.origin.rank}
    rest = hits[: 2 if others else 3]
    return unique_proofs(proof(h) for h in (first, *reversed(others.values()), *rest))


class _Blank(Formatter):
    """Fills what is known, and leaves out what is not."""

    def get_value(self, key: int | str, args: Sequence[object], kwargs: object) -> str:
        values = args[0]
        assert isinstance(values, dict)
        return str(values.get(str(key), ""))


def _sentence(signature: Signature, hits: Sequence[Hit]) -> str:
    if signature.says is None:
        return signature.title
    values: dict[str, str] = {}
    for hit in hits:
        for name, value in hit.fields.items():
            base = name.rstrip("0123456789")
            values.setdefault(name, value.strip())
            if base in signature.says or name != base:
                values.setdefault(base, value.strip())
    said = _Blank().vformat(signature.says, (values,), {}).strip()
    said = re.sub(r"\s*[(\[]\s*(?:signal|bytes|it supports CUDA)?\s*[)\]]", "", said)
    said = re.sub(r"(?::? tried to allocate|: |, | in | of | while writing | at )$", "", said.strip())
    return re.sub(r"\s{2,}", " ", said).strip(" :,")


def _outer_phase(view: View, hit: Hit) -> str | None:
    """What a distributed checkpoint was doing whose list of failures holds this line."""
    outer = next((h for h in view.hits if h.code == DCP_FAILED and h.frames and is_inside(h, hit)), None)
    return phases.of_frames(outer.frames) if outer is not None else None
