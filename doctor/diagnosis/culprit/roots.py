"""Causes that a line names itself: lines of one story together, weighed, put right where they disagree."""

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

MOST = 99.0
LATE, BARE = 25, 15
"""What an exception loses that came after a consequence of its rank, or of which one line is all there is."""
LAST_LINES = 10
OF_A_PROGRAM = 58.0
"""Score of an Xid that a program causes itself."""
TIME_USED_UP = 55.0
"""Score of a time limit that a job only reached because it hung."""
OWN_PROCESS = 80.0
"""Score of a process that hangs in the kernel and is known to be a rank."""
NEAR = 200
"""Lines between a line with a rank and one without, up to which they tell of the same failure."""
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
    first, signature = hits[0], SIGNATURES[hits[0].code]
    ranks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    culprits = to_blame(view, signature, hits, ranks)
    score = _score(view, hits, culprits)
    if score is None:
        return None
    return Candidate(
        min(score, MOST),
        conclusion(view, signature, hits, culprits),
        first.order,
        ranks | culprits,
        min((h.origin.time for h in hits if h.origin.time is not None), default=None),
        own=signature.scope in (Scope.RANK, Scope.NAMED),
    )


def _score(view: View, hits: Sequence[Hit], culprits: frozenset[int]) -> float | None:
    """The weight of the signature, put right by what these lines say; None where they are no cause."""
    first = hits[0]
    weight = float(SIGNATURES[first.code].weight) + (TRACED if any(h.frames for h in hits) else 0)
    if first.code == UNKNOWN_EXCEPTION:
        return _exception_score(view, hits, weight)
    if first.code == XID:
        meaning = XIDS.get(int(first.fields["xid"]))
        return MOST if meaning is None or meaning.kind is Kind.HARDWARE else OF_A_PROGRAM
    if first.code == BLOCKED and culprits:
        return OWN_PROCESS
    if first.code == SCHEDULER and hung_before(view, hits):
        return TIME_USED_UP
    return weight


def _exception_score(view: View, hits: Sequence[Hit], weight: float) -> float | None:
    """An unknown exception counts less where its rank had already reported a consequence. Where it has no
    traceback and ended nothing it may be a text that speaks of one, unless it is among the last lines.
    """
    ranks = {h.origin.rank for h in hits if h.origin.rank is not None}
    if any(h.origin.rank in ranks and h.kind == VICTIM and h.order < hits[0].order for h in view.hits):
        weight -= LATE
    if any(h.frames for h in hits) or view.consequences or view.failed_exits:
        return weight
    return weight - BARE if any(_at_end(view, h) for h in hits) else None


def _at_end(view: View, hit: Hit) -> bool:
    length = next((i.lines for i in view.incident.inputs if i.name == hit.origin.file), 0)
    return length - hit.origin.line <= LAST_LINES


# several candidates


def _merged(view: View, found: Sequence[Candidate]) -> list[Candidate]:
    """One candidate per story: lines of the same rank, or one inside another, are not two failures."""
    kept: list[Candidate] = []
    for candidate in sorted(found, key=lambda c: (-c.score, c.order)):
        into = next((i for i, k in enumerate(kept) if _is_same_story(k, candidate)), None)
        if into is None:
            kept.append(candidate)
        else:
            kept[into] = _joined(kept[into], candidate)
    return kept


def _joined(main: Candidate, more: Candidate) -> Candidate:
    """The likelier of two candidates with what the other adds."""
    c, other = main.conclusion, more.conclusion
    unnamed = not c.culprits and main.own and other.code == UNKNOWN_EXCEPTION
    return replace(
        main,
        order=min(main.order, more.order),
        conclusion=replace(
            c,
            culprits=other.culprits if unnamed else c.culprits,
            host=c.host or other.host,
            evidence=unique_proofs((*c.evidence, *other.evidence)),
            explained=tuple(dict.fromkeys((*c.explained, *other.explained))),
        ),
    )


def _is_same_story(one: Candidate, two: Candidate) -> bool:
    a, b = one.conclusion, two.conclusion
    if {a.code, b.code} == HOST_OOM:
        return True
    if one.ranks and two.ranks:
        return two.ranks <= one.ranks or one.ranks <= two.ranks
    if not two.ranks and not one.ranks:
        return True
    # One of them has no rank: the same story where it stands next to the other, unless it is of a device.
    near = any(p.file == q.file and abs(p.line - q.line) < NEAR for p in a.evidence[:1] for q in b.evidence)
    return near and not any(SIGNATURES[c].scope is Scope.DEVICE for c in (a.code, b.code) if c in SIGNATURES)
