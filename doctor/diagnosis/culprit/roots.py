"""Causes that a line names itself: grouped by who printed them, weighed, and put right where lines disagree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from string import Formatter

from fsdp_doctor.diagnosis import oom, phases
from fsdp_doctor.diagnosis.culprit.view import (
    WAITED,
    Candidate,
    View,
    proof,
    rank_words,
    unique_proofs,
)
from fsdp_doctor.diagnosis.culprit.wording import Words, capital, particulars
from fsdp_doctor.subjects.incident import LIKELY, ROOT, VICTIM, Conclusion, Hit, Proof, Remedy
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS, OOM_AT_SAVE
from fsdp_doctor.tables.log_signatures import SIGNATURES, Scope, Signature
from fsdp_doctor.tables.xid import XIDS, Kind

GENERIC = "LOG298"
DCP = "LOG506"
MISMATCH = "LOG115"
NAN = "LOG731"
XID = "LOG231"
CANCELLED = "LOG214"
CUDA_OOM = frozenset(("LOG301", "LOG303", "LOG304", "LOG305"))
HOST_OOM = frozenset(("LOG311", "LOG312"))
TRACED = 5
"""What a traceback, the end of a process, adds to a line's weight."""
LATE = 25
"""What an exception loses that a rank raised after it had reported a consequence."""
LONG_BEFORE = 7200.0
"""Seconds before the first consequence within which a fault of a device counts as its cause."""
CONFIDENT = 70
TIME_USED_UP = 55.0
"""Score of a time limit that a job only reached because it hung."""
CONTEXT_OF = {"LOG602", "LOG114", "LOG401", "LOG402", "LOG404", "LOG139", "LOG147", "LOG152", "LOG732"}
JOB_SHARE = 0.5
SHAPE = re.compile(r"\d+(?:\.\d+)?")


def candidates(view: View) -> list[Candidate]:
    """All causes that lines name, most of them not the one."""
    usable = [h for h in view.hits if h.kind in (ROOT, LIKELY) and not _excused(view, h)]
    groups: dict[object, list[Hit]] = {}
    for hit in usable:
        groups.setdefault(_group(hit), []).append(hit)
    found = [c for hits in groups.values() if (c := _candidate(view, hits)) is not None]
    return _merged(view, found)


def _excused(view: View, hit: Hit) -> bool:
    """Whether a line is no cause here."""
    if hit.code == MISMATCH:
        return True  # judged with all ranks' figures by `collectives`
    if hit.code == XID:
        number = int(hit.fields["xid"])
        meaning = XIDS.get(number)
        if meaning is not None and meaning.kind is not Kind.HARDWARE:
            return meaning.kind is Kind.INFORMATION or number == 45
        first = view.first_consequence
        return first is not None and hit.origin.time is not None and hit.origin.time < first - LONG_BEFORE
    if hit.code in HOST_OOM and view.is_accounted(hit):
        return True  # said with step and node by `accounted`
    if hit.code == "LOG205" and any(
        e.rank is not None and e.code in (-9, -11, -7, -4, -8) for e in view.exits
    ):
        return True  # said better by the exit
    signature = SIGNATURES.get(hit.code)
    if signature is not None and signature.scope is Scope.DEVICE and signature.weight >= 90:
        return False
    if hit.code == NAN:
        return False
    if hit.code == CANCELLED and not any(name.startswith("why") for name in hit.fields) and view.failed_exits:
        return True  # srun ends the step after a task has failed
    if hit.code in ("LOG219",) and (view.consequences or view.failed_exits):
        return True
    return view.survived(hit)


def _group(hit: Hit) -> object:
    if hit.code == GENERIC:
        return (hit.code, hit.fields.get("exc"), SHAPE.sub("#", hit.fields.get("msg", ""))[:80])
    if hit.code == XID:
        return (hit.code, hit.fields.get("bus"), hit.origin.host)
    return hit.code


def _candidate(view: View, hits: Sequence[Hit]) -> Candidate | None:
    first = hits[0]
    signature = SIGNATURES[first.code]
    ranks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    named = _named(hits) if signature.scope is Scope.NAMED else frozenset()
    culprits = named or _culprits(view, signature, hits, ranks)
    score = float(signature.weight) + (TRACED if any(h.frames for h in hits) else 0)
    if first.code == GENERIC:
        score = _generic_score(view, hits, score)
        if score < 0:
            return None
    if first.code == XID:
        meaning = XIDS.get(int(first.fields["xid"]))
        score = 99.0 if meaning is None or meaning.kind is Kind.HARDWARE else 58.0
    if first.code == CANCELLED and _hung_before(view, hits):
        score = TIME_USED_UP
    conclusion = _conclusion(view, signature, hits, culprits)
    return Candidate(
        min(score, 99.0),
        conclusion,
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


def _hung_before(view: View, hits: Sequence[Hit]) -> bool:
    """Whether a job that reached its time limit had failed or hung before, so that the limit was a consequence."""
    if not any("TIME" in value for h in hits for name, value in h.fields.items() if name.startswith("why")):
        return False
    before = [h for h in view.hits if h.order < hits[0].order and h.origin.rank is not None]
    return any(
        h.code in WAITED or (h.kind in (ROOT, LIKELY) and h.frames and not view.went_on(h)) for h in before
    )


def _at_end(view: View, hit: Hit) -> bool:
    length = next((i.lines for i in view.incident.inputs if i.name == hit.origin.file), 0)
    return length - hit.origin.line <= 10


def _named(hits: Iterable[Hit]) -> frozenset[int]:
    return frozenset(int(n) for h in hits for n in re.findall(r"\d+", h.fields.get("bad", ""))[:64])


def _culprits(view: View, signature: Signature, hits: Sequence[Hit], ranks: frozenset[int]) -> frozenset[int]:
    """Whose fault it is, by the signature's scope and by who else says so."""
    if signature.code == XID:
        return _xid_ranks(view, hits[0])
    if signature.code in HOST_OOM:
        return _killed(view, hits)
    if signature.code == CANCELLED and any("NODE" in h.text for h in hits):
        silent = view.expected - view.suffering
        return silent if len(silent) <= len(view.waited) else frozenset()
    dcp = _dcp_ranks(view, hits)
    if dcp is not None:
        return dcp
    if not ranks and signature.scope is not Scope.HOST and (owner := _owner(view, hits)) is not None:
        return frozenset((owner,))
    everyone = view.ranks | ranks
    if signature.scope is Scope.RANK:
        shared = len(ranks) > 1 and len(ranks) >= JOB_SHARE * len(everyone)
        if signature.code == NAN and not frozenset(view.steps) - ranks:
            return frozenset()  # no other rank says what its loss is
        return frozenset() if shared else ranks  # nobody is to blame for what all of them raise
    if signature.scope is Scope.DEVICE and len(ranks) == 1:
        return ranks
    others = view.waited | view.lost_peer
    # The others ran on until they waited: what would stop every rank stopped only these.
    apart = bool(ranks and others) and not ranks & others
    few = len(ranks) == 1 or len(ranks) <= 0.25 * len(ranks | others)
    if signature.scope in (Scope.JOB, Scope.HOST) and apart and few:
        return ranks if signature.weight >= CONFIDENT and any(h.frames for h in hits) else frozenset()
    return frozenset()


def _owner(view: View, hits: Sequence[Hit]) -> int | None:
    """The one rank that ended by an error of its own and said nothing under its name: the error without a
    name is its, if it was printed once while the launcher stopped the others.
    """
    if sum(h.count for h in hits) != 1 or not any(h.frames for h in hits):
        return None
    speakers = {
        h.origin.rank
        for h in view.hits
        if h.kind in (ROOT, LIKELY, VICTIM) and h.code not in ("LOG202", "LOG205")
    }
    failed = [e for e in view.failed_exits if e.code == 1 and e.rank is not None and e.rank not in speakers]
    stopped = [e for e in view.exits if e.code in (-15, 15, 143)]
    return failed[0].rank if len(failed) == 1 and (stopped or speakers - {None}) else None


def _dcp_ranks(view: View, hits: Sequence[Hit]) -> frozenset[int] | None:
    """The failing ranks that a distributed checkpoint lists around these lines; None where there is no list."""
    lists = [h for h in view.hits if h.code == DCP and h.fields.get("ranks")]
    near = [
        c
        for c in lists
        if any(c.origin.file == h.origin.file and 0 <= h.origin.line - c.origin.line < 400 for h in hits)
    ]
    if not near:
        return None
    named = frozenset(int(n) for c in near for n in re.findall(r"\d+", c.fields["ranks"]))
    world = (
        view.world if view.incident.job.stated or view.incident.job.basis.startswith("the sizes") else None
    )
    together = named == frozenset(range(len(named))) and len(named) > 1
    if (world is not None and len(named) >= world) or (
        together and (world is None or len(named) * 2 > world)
    ):
        return frozenset()
    return named


def _xid_ranks(view: View, hit: Hit) -> frozenset[int]:
    job = view.incident.job
    pid = hit.fields.get("pid", "")
    if pid.isdigit() and (found := [r for r, p in job.pids.items() if p == int(pid)]):
        return frozenset(found)
    parts = re.fullmatch(
        r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.(\d))?", hit.fields.get("bus", "").lower()
    )
    if parts:
        number = (
            (int(parts[1] or "0", 16) << 20)
            | (int(parts[2], 16) << 12)
            | (int(parts[3], 16) << 4)
            | int(parts[4] or 0)
        )
        if number in job.buses:
            return frozenset((job.buses[number],))
    return frozenset()


def _killed(view: View, hits: Sequence[Hit]) -> frozenset[int]:
    """Ranks whose process the OOM killer ended: by number, else those that ended by SIGKILL."""
    pids = {int(h.fields["pid"]) for h in hits if h.fields.get("pid", "").isdigit()}
    by_pid = frozenset(r for r, p in view.incident.job.pids.items() if p in pids)
    killed = frozenset(e.rank for e in view.exits if e.rank is not None and e.code in (-9, 137, 9))
    tasks = frozenset(h.origin.rank for h in hits if h.origin.rank is not None)
    return by_pid or killed or tasks


# words


def _conclusion(
    view: View, signature: Signature, hits: Sequence[Hit], culprits: frozenset[int]
) -> Conclusion:
    first = max(hits, key=lambda h: (len(h.frames), len(h.fields), -h.order))
    title = _sentence(signature, hits)
    title = capital(title) if title else signature.title
    fixes = [Remedy(signature.fix, signature.command)]
    why, row, code = signature.why, signature.row.value if signature.row else None, signature.code
    own = phases.own_frame(first.frames)
    phase = phases.of_frames(first.frames) or (
        view.phase_of(first.origin.rank) if first.origin.rank is not None else None
    )
    alternatives: list[str] = []
    if signature.code in CUDA_OOM:
        report = oom.report(first)
        says, advice = oom.sub_diagnosis(report, phase)
        fixes = [*(Remedy(a) for a in advice), *fixes]
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
    if culprits:
        who = rank_words(culprits).capitalize()
        title = title if title.startswith(who) else f"{who}: {title}"
    elif (
        signature.scope is Scope.RANK and len({h.origin.rank for h in hits if h.origin.rank is not None}) > 1
    ):
        title += f" (on {rank_words(h.origin.rank for h in hits if h.origin.rank is not None)}: the program or its configuration, not one rank)"
    if own is not None:
        why = f"It was raised in {phases.frame_words(own)}. {why}"
    host = next((h.origin.host for h in hits if h.origin.host), None)
    if host is None and culprits:
        host = view.incident.job.hosts.get(min(culprits))
    score = signature.weight + (TRACED if first.frames else 0)
    if signature.code == GENERIC and first.frames and (view.consequences or view.failed_exits):
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
        attempt=view.attempt,
    )


def _proofs(view: View, first: Hit, hits: Sequence[Hit]) -> tuple[Proof, ...]:
    """The best line, then one line of each other rank, then the rest of them up to a few."""
    others = {h.origin.rank: h for h in reversed(hits) if h.origin.rank != first.origin.rank}
    rest = hits[: 2 if others else 3]
    return unique_proofs(proof(h) for h in (first, *others.values(), *rest))


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
    outer = next(
        (
            h
            for h in view.hits
            if h.code == DCP
            and h.origin.file == hit.origin.file
            and 0 <= hit.origin.line - h.origin.line < 400
            and h.frames
        ),
        None,
    )
    return phases.of_frames(outer.frames) if outer is not None else None


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
        if not culprits and other.culprits and other.code in (GENERIC,) and host.own:
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
    if (a.code == "LOG312" and b.code == "LOG311") or (a.code == "LOG311" and b.code == "LOG312"):
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
