"""Which candidate is the cause, which others belong to its story, and which are failures of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.candidate import Candidate
from fsdp_doctor.diagnosis.culprit.lines import ECC, GPU_UNUSABLE, KERNEL_FAILED, XID
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Conclusion
from fsdp_doctor.subjects.incident import CONFIRMS, CONTEXT, VICTIM
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
OF_A_DEVICE = frozenset((ECC, KERNEL_FAILED, GPU_UNUSABLE))
"""Errors by which a process sees the fault of its GPU that the driver reports as an Xid."""
INDEPENDENT = 85
"""Score from which a second cause is told apart from the first."""
REASON = 60
"""Score from which a rank's own error explains that it never came to a collective."""
ALTERNATIVE = 50
"""Score from which what else could be so is told."""
MAX_ALTERNATIVES = 3
CLOSE = 12
"""Difference of scores up to which two errors weigh about the same, so that the earlier one is the cause."""
AT_ONCE = 1.0
"""Seconds between two errors of which neither can be called the earlier one."""


def ranked(view: View, found: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, the likeliest cause first."""
    ordered = sorted(found, key=lambda c: (-c.score, c.order))
    return _reason_first(view, _earliest_first(ordered))


def _earliest_first(ordered: list[Candidate]) -> list[Candidate]:
    """Of causes that ranks printed themselves, and that weigh about the same, the earlier one comes first."""
    best = ordered[0]
    rivals = [c for c in ordered if c.own and best.score - c.score <= CLOSE and c.conclusion.culprits]
    times = [c.time for c in rivals if c.time is not None]
    if not best.own or len(rivals) < 2 or len(times) < len(rivals):
        return ordered
    if best.time is not None and best.time - min(times) < AT_ONCE:
        return ordered
    return _led_by(rivals[times.index(min(times))], ordered)


def _reason_first(view: View, ordered: list[Candidate]) -> list[Candidate]:
    """That a rank never entered a collective says where it was missed; an error of its own says why."""
    best, culprits = ordered[0], set(ordered[0].conclusion.culprits)
    told = [r for r in view.incident.recorder if r.kind == "missing" and set(r.ranks) == culprits]
    recorded = {codes.RECORDER if r.conclusion is None else r.conclusion.code for r in told} | {codes.RAS}
    if best.own or best.conclusion.code not in recorded:
        return ordered
    for reason in ordered[1:]:
        named = set(reason.conclusion.culprits)
        if reason.own and named and named <= culprits and reason.score >= REASON:
            return _led_by(reason, ordered)
    return ordered


def _led_by(first: Candidate, ordered: list[Candidate]) -> list[Candidate]:
    return [first, *(c for c in ordered if c is not first)]


def supported(view: View, best: Candidate, others: Sequence[Candidate]) -> Conclusion:
    """The best conclusion with what the others add: a culprit it lacks, alternatives, all it explains."""
    conclusion = best.conclusion
    if conclusion.code == XID and not conclusion.culprits:
        met = {c.conclusion.culprits for c in others if c.conclusion.code in OF_A_DEVICE}
        if len(met) == 1:
            conclusion = replace(conclusion, culprits=met.pop())
    same_story = [c for c in others if not is_independent(view, best, c)]
    alternatives = [
        c.conclusion.title
        for c in same_story
        if c.score >= ALTERNATIVE and not (best.own and c.conclusion.code in SYMPTOMS)
    ]
    explained = {h.code for h in view.hits if h.kind in (VICTIM, CONTEXT, CONFIRMS)}
    explained.update(conclusion.explained, *(c.conclusion.explained for c in same_story))
    return replace(
        conclusion,
        alternatives=tuple(dict.fromkeys((*conclusion.alternatives, *alternatives[:MAX_ALTERNATIVES]))),
        explained=tuple(sorted(explained)),
    )


def is_independent(view: View, best: Candidate, other: Candidate) -> bool:
    """Whether a second cause is a failure of its own: another rank's own error, or another device's."""
    if other.score < INDEPENDENT or other.conclusion.code in SYMPTOMS:
        return False
    a, b = best.conclusion, other.conclusion
    if a.code == XID and b.code in OF_A_DEVICE:
        return False
    if b.code in SIGNATURES and SIGNATURES[b.code].scope is Scope.DEVICE:
        return (a.code, a.device, a.host) != (b.code, b.device, b.host)
    if not other.own or not b.culprits or set(b.culprits) & set(a.culprits):
        return False
    earlier = (h for h in view.hits if h.kind == VICTIM and h.order < other.order)
    return not any(h.origin.rank in b.culprits for h in earlier)
