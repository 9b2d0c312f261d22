"""Causes that a line names itself: grouped by who printed them, weighed, and put right where lines disagree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.blame import to_blame
from fsdp_doctor.diagnosis.culprit.candidate import Candidate
from fsdp_doctor.diagnosis.culprit.excuses import hung_before, is_excused
from fsdp_doctor.diagnosis.culprit.lines import BLOCKED, HOST_OOM, SCHEDULER, UNKNOWN_EXCEPTION, XID
from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.diagnosis.culprit.root_words import TRACED, conclusion
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.incident import LIKELY, ROOT, VICTIM, Hit
from fsdp_doctor.tables.log_signatures import SIGNATURES, Scope
from fsdp_doctor.tables.xid import XIDS, Kind

LATE = 25
"""What an exception loses that a rank raised after it had reported a consequence."""
TIME_USED_UP = 55.0
"""Score of a time limit that a job only reached because it hung."""
OWN_PROCESS = 80.0
"""Score of a process that hangs in the kernel and is known to be a rank."""
SHAPE = re.compile(r"\d+(?:\.\d+)?")


def candidates(view: View) -> list[Candidate]:
    """All causes that lines name, most of them not the one."""
    usable = [h for h in view.hits if h.kind in (ROOT, LIKELY) and not is_excused(view, h)]
    groups: dict[object, list[Hit]] = {}
    for hit in usable:
        groups.setdefault(_group(hit), []).append(hit)
    found = [c for hits in groups.values() if (c := _candidate(view, hits)) is not None]
    return _merged(view, found)


def _group(hit: Hit) -> object:
    if hit.code == UNKNOWN_EXCEPTION:
        return (hit.code, hit.fields.get("exc"), SHAPE.sub("#", hit.fields.get("msg", ""))[:80])
    if hit.code == XID:
        return (hit.code, hit.fields.get("bus"), hit.origin.host)
    return hit.code


def _candidate(view: View, hits: Sequence[Hit]) -> Candidate | None:
    first = hits[0]
    signature = SIGNATURES[first.code]
    ranks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    culprits = to_blame(view, signature, hits, ranks)
    score = float(signature.weight) + (TRACED if any(h.frames for h in hits) else 0)
    if first.code == UNKNOWN_EXCEPTION:
        score = _generic_score(view, hits, score)
        if score < 0:
            return None
    if first.code == XID:
        meaning = XIDS.get(int(first.fields["xid"]))
        score = 99.0 if meaning is None or meaning.kind is Kind.HARDWARE else 58.0
    if first.code == BLOCKED and culprits:
        score = OWN_PROCESS
    if first.code == SCHEDULER and hung_before(view, hits):
        score = TIME_USED_UP
    return Candidate(
        min(score, 99.0),
        conclusion(view, signature, hits, culprits),
        first.order,
        frozenset(ranks | culprits),
        min((h.origin.time for h in hits if h.origin.time is not None), default=None),
        own=signature.scope in (Scope.RANK, Scope.NAMED),
    )


def _generic_score(view: View, hits: Sequence[Hit], score: float) -> float:
    """An unknown exception counts less where its rank had already reported a consequence."""
    ranks = {h.origin.rank for h in hits}
    for rank in ranks:
        earlier = next(
            (h for h in view.hits if h.origin.rank == rank and h.kind == VICTIM and h.order < hits[0].order),
            None,
        )
        if earlier is not None and rank is not None:
            score -= LATE
            break
    if not any(h.frames for h in hits) and not view.consequences and not view.failed_exits:
        return score - 15 if any(_at_end(view, h) for h in hits) else -1
    return score


def _at_end(view: View, hit: Hit) -> bool:
    length = next((i.lines for i in view.incident.inputs if i.name == hit.origin.file), 0)
    return length - hit.origin.line <= 10


# several candidates


def _merged(view: View, found: list[Candidate]) -> list[Candidate]:
    """One candidate per story: lines of the same rank, or one inside another, are not two failures."""
    ordered = sorted(found, key=lambda c: (-c.score, c.order))
    kept: list[Candidate] = []
    for candidate in ordered:
        into = next((i for i, k in enumerate(kept) if _same_story(view, k, candidate)), None)
        if into is None:
            kept.append(candidate)
            continue
        host = kept[into]
        c, other = host.conclusion, candidate.conclusion
        culprits = c.culprits
        if not culprits and other.culprits and other.code in (UNKNOWN_EXCEPTION,) and host.own:
            culprits = other.culprits
        kept[into] = replace(
            host,
            order=min(host.order, candidate.order),
            conclusion=replace(
                c,
                culprits=culprits,
                host=c.host or other.host,
                evidence=unique_proofs((*c.evidence, *other.evidence)),
                explained=tuple(dict.fromkeys((*c.explained, *other.explained))),
            ),
        )
    return kept


def _same_story(view: View, one: Candidate, two: Candidate) -> bool:
    a, b = one.conclusion, two.conclusion
    if {a.code, b.code} == HOST_OOM:
        return True
    if one.ranks and two.ranks:
        return two.ranks <= one.ranks or one.ranks <= two.ranks
    if not two.ranks and not one.ranks:
        return True
    # One of them has no rank: the same story where it stands next to the other.
    first, second = (a.evidence[:1], b.evidence)
    near = any(p.file == q.file and abs(p.line - q.line) < 200 for p in first for q in second)
    device = any(SIGNATURES[c.code].scope is Scope.DEVICE for c in (a, b) if c.code in SIGNATURES)
    return near and not device
