"""From all ways to a culprit to the conclusions: the cause first, then what is independent of it."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.diagnosis.culprit import (
    absent,
    accounted,
    collectives,
    loading,
    memory,
    own_time,
    pace,
    ras,
    roots,
    stands,
)
from fsdp_doctor.diagnosis.culprit.states import rank_states
from fsdp_doctor.diagnosis.culprit.view import Candidate, View, derived, proof, rank_words, unique_proofs
from fsdp_doctor.diagnosis.summary import summary, timeline
from fsdp_doctor.subjects.diagnosis import Conclusion, Diagnosis, Remedy
from fsdp_doctor.subjects.incident import Incident
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_signatures import SIGNATURES, Scope

SYMPTOMS = (
    codes.STALLED,
    codes.NEVER_ENTERED,
    codes.LEFT_EARLY,
    codes.STRAGGLER,
    codes.PEER_NAMED,
    codes.SLOWED_DOWN,
    codes.DATA_LOADING,
)
"""Conclusions that are void where a cause with an error of its own is known."""
INDEPENDENT = 85
"""Score from which a second cause is told apart from the first."""
SURE = 80
CUDA_ERRORS = frozenset(("LOG232", "LOG233", "LOG234"))
REASON = 60
"""Score from which a rank's own error explains that it never came to a collective."""
MAX_CONCLUSIONS = 6
RECORD = (
    "the output of every rank: torchrun --log-dir DIR --redirects 3 --tee 3",
    "the Flight Recorder: TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8), TORCH_NCCL_DUMP_ON_TIMEOUT=1, and its files /tmp/nccl_trace_rank_*",
    "the kernel log of every node: dmesg -T",
    "all of that in one: fsdp-doctor run -- torchrun …",
)


def conclude(incident: Incident) -> Diagnosis:
    """Draw the conclusions. Pure: the same incident gives the same diagnosis."""
    attempts = sorted(
        {h.origin.attempt for h in incident.hits} | {e.origin.attempt for e in incident.exits}
    ) or [0]
    found: list[Conclusion] = []
    for attempt in reversed(attempts):
        view = View(
            incident,
            attempt,
            tuple(h for h in incident.hits if h.origin.attempt == attempt),
            tuple(e for e in incident.exits if e.origin.attempt == attempt),
        )
        for conclusion in _attempt(view):
            same = next(
                (c for c in found if (c.code, c.culprits) == (conclusion.code, conclusion.culprits)), None
            )
            if same is None:
                found.append(conclusion)
    if len(attempts) > 1:
        found.sort(key=lambda c: {"high": 0, "medium": 1, "low": 2}[c.confidence])
    told = tuple(found[:MAX_CONCLUSIONS])
    states = rank_states(incident, told)
    return Diagnosis(
        conclusions=told,
        ranks=states,
        summary=summary(incident, told, states),
        timeline=timeline(incident),
        notes=_notes(incident),
    )


def _attempt(view: View) -> list[Conclusion]:
    everything = [
        *roots.candidates(view),
        *collectives.candidates(view),
        *absent.candidates(view),
        *accounted.candidates(view),
        *stands.candidates(view),
        *ras.candidates(view),
        *pace.candidates(view),
        *own_time.candidates(view),
        *loading.candidates(view),
        *memory.candidates(view),
    ]
    if not everything:
        return [c for c in (_cannot_tell(view), _sockets(view)) if c is not None][:1]
    ordered = sorted(everything, key=lambda c: (-c.score, c.order))
    ordered = _reason_first(view, _earliest_first(ordered))
    best = ordered[0]
    first = memory.supported(view, _supported(view, best, ordered))
    if first.confidence == "low" and not first.title.lower().startswith("cannot tell"):
        first = replace(
            first,
            title=f"Cannot tell for sure: {first.title[0].lower()}{first.title[1:]}",
            culprits=(),
            record_next=first.record_next or RECORD,
        )
    return [first, *(c.conclusion for c in ordered[1:] if _independent(view, best, c))]


def _reason_first(view: View, ordered: list[Candidate]) -> list[Candidate]:
    """That a rank never entered a collective says where it was missed; an error of its own says why."""
    culprits = set(ordered[0].conclusion.culprits)
    told = [r for r in view.incident.recorder if r.kind == "missing" and set(r.ranks) == culprits]
    recorded = {codes.RECORDER if r.conclusion is None else r.conclusion.code for r in told} | {codes.RAS}
    if ordered[0].own or ordered[0].conclusion.code not in recorded:
        return ordered
    for reason in ordered[1:]:
        named = set(reason.conclusion.culprits)
        if reason.own and named and named <= culprits and reason.score >= REASON:
            return [reason, *(c for c in ordered if c is not reason)]
    return ordered


def _earliest_first(ordered: list[Candidate]) -> list[Candidate]:
    """Of causes that ranks printed themselves, and that weigh about the same, the earlier one comes first."""
    best = ordered[0]
    if not best.own:
        return ordered
    rivals = [c for c in ordered if c.own and best.score - c.score <= 12 and c.conclusion.culprits]
    if len(rivals) < 2:
        return ordered
    if all(c.time is not None for c in rivals):
        first = min(rivals, key=lambda c: (c.time or 0.0, -c.score))
        if best.time is not None and first.time is not None and best.time - first.time < 1.0:
            first = best
    else:
        first = best
    return [first, *(c for c in ordered if c is not first)]


def _supported(view: View, best: Candidate, ordered: list[Candidate]) -> Conclusion:
    """The best conclusion with what the others add: a culprit it lacks, alternatives, all it explains."""
    conclusion = best.conclusion
    if conclusion.code == roots.XID and not conclusion.culprits:
        met = {c.conclusion.culprits for c in ordered[1:] if c.conclusion.code in CUDA_ERRORS}
        if len(met) == 1:
            conclusion = replace(conclusion, culprits=met.pop())
    others = [c for c in ordered[1:] if c.conclusion.code not in SYMPTOMS or not best.own]
    alternatives = [c.conclusion.title for c in others if c.score >= 50 and not _independent(view, best, c)][
        :3
    ]
    explained = {
        *conclusion.explained,
        *(h.code for h in view.hits if h.kind in ("victim", "context", "confirms")),
    }
    explained |= {
        code for c in ordered[1:] if not _independent(view, best, c) for code in c.conclusion.explained
    }
    host = conclusion.host
    if host is None and conclusion.culprits:
        host = view.incident.job.hosts.get(conclusion.culprits[0])
    victims = conclusion.victims or tuple(sorted(view.suffering - set(conclusion.culprits)))
    return replace(
        conclusion,
        host=host,
        victims=victims,
        alternatives=tuple(dict.fromkeys((*conclusion.alternatives, *alternatives))),
        explained=tuple(sorted(explained)),
    )


def _independent(view: View, best: Candidate, other: Candidate) -> bool:
    """Whether a second cause is a failure of its own: another rank's own error, or another device's."""
    if other.score < INDEPENDENT or other.conclusion.code in SYMPTOMS:
        return False
    a, b = best.conclusion, other.conclusion
    device = b.code in SIGNATURES and SIGNATURES[b.code].scope is Scope.DEVICE
    if a.code == roots.XID and b.code in CUDA_ERRORS:
        return False  # a fault of the device as its process sees it
    if device:
        return (a.code, a.device, a.host) != (b.code, b.device, b.host)
    if not other.own or not b.culprits or set(b.culprits) & set(a.culprits):
        return False
    return not any(
        h.kind == "victim" and h.origin.rank in b.culprits and h.order < other.order for h in view.hits
    )


def _cannot_tell(view: View) -> Conclusion | None:
    """Only consequences are here."""
    stopped = [h for h in view.hits if h.code == "LOG202"]
    hits = (
        [h for h in view.consequences if h.code not in ("LOG144", "LOG106")]
        or list(view.consequences)
        or stopped
    )
    hits = [*{h.origin.rank: h for h in reversed(hits)}.values()][::-1]
    if not hits:
        return None
    if not view.failed_exits and view.survived(hits[0]):
        return None
    ranks = view.suffering
    only = view.waited | view.lost_peer
    missing = view.expected - ranks if view.world else frozenset()
    said = (
        f"{rank_words(ranks)} only report{'s' if len(ranks) == 1 else ''} waiting or the loss of a peer"
        if ranks
        else "these lines are only consequences"
    )
    lacking = (
        f"; nothing is here from {rank_words(missing)}" if missing and only and len(missing) < 64 else ""
    )
    return derived(
        codes.CANNOT_TELL,
        f"Cannot tell which rank or event caused it: {said}{lacking}",
        "low",
        victims=tuple(sorted(ranks)),
        evidence=unique_proofs(proof(h) for h in hits),
        record_next=RECORD,
        explained=tuple(sorted({codes.CANNOT_TELL, *(h.code for h in view.hits)})),
        attempt=view.attempt,
    )


def _sockets(view: View) -> Conclusion | None:
    """A job over several nodes that uses TCP, where nothing else is wrong."""
    hits = [h for h in view.hits if h.code == "LOG401"]
    hosts = {h.origin.host for h in hits if h.origin.host}
    if len(hosts) < 2 and (view.incident.job.nodes or 1) < 2:
        return None
    if not hits:
        return None
    signature = SIGNATURES["LOG401"]
    reasons = [h for h in view.hits if h.code == "LOG402"]
    return Conclusion(
        code=signature.code,
        title=f"NCCL uses TCP sockets between {max(len(hosts), view.incident.job.nodes or 0)} nodes instead of InfiniBand or RoCE: slow communication",
        row="slow",
        confidence="medium",
        why=signature.why,
        evidence=unique_proofs(proof(h) for h in (*reasons[:1], *hits[:3])),
        fixes=(Remedy(signature.fix),),
        explained=(signature.code, "LOG402"),
        attempt=view.attempt,
    )


def _notes(incident: Incident) -> tuple[str, ...]:
    notes: list[str] = []
    job = incident.job
    if job.world_size is not None:
        notes.append(f"world size {job.world_size}" + ("" if job.stated else f" (inferred: {job.basis})"))
    notes += [f"{i.name}: {i.problem}" for i in incident.inputs if i.problem][:20]
    notes += [
        f"{file}: its clock was shifted by {shift:+.1f} s"
        for file, shift in list(incident.clock_offsets.items())[:8]
    ]
    if job.restarts:
        notes.append(f"{job.restarts} restart(s): attempts were judged separately, the last one first")
    if incident.truncated:
        notes.append("not everything was read: give more --deadline, or fewer files")
    return tuple(notes)
