"""What snapshots of CUDA memory add: a cause of their own, or evidence for the logs' out-of-memory error."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.diagnosis import snapshot_words as snapshots
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.lines import FULL_STATE_OOM
from fsdp_doctor.diagnosis.culprit.proofs import MAX_PROOFS, unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.oom import OOM_CODES, words
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.subjects.memory_snapshot import MemorySnapshot
from fsdp_doctor.tables import log_conclusions as codes

SCORE = 84
SUPPORT = 4
"""Lines of a snapshot beside those of a log."""


def candidates(view: View) -> list[Candidate]:
    """The out-of-memory events of snapshots, where no line of a log tells of one."""
    if any(h.code in OOM_CODES for h in view.hits):
        return []
    failed = [s for s in view.incident.snapshots if s.ooms]
    if not failed:
        return []
    ranks = tuple(sorted({s.rank for s in failed if s.rank is not None}))
    last = failed[0].ooms[-1]
    who = f"Rank {ranks[0]} ran" if len(failed) == len(ranks) == 1 else "Ran"
    at = f" at {last.file}:{last.line}" if last.file else ""
    says = [f for s in failed for d in s.devices if (f := snapshots.fragments(d, s.ooms))]
    conclusion = derived(
        codes.MEMORY_SNAPSHOT,
        f"{who} out of memory on device {last.device}: {words(last.requested)} were asked for{at}",
        "high",
        why="".join(f"{s}. " for s in says) + codes.CONCLUSIONS[codes.MEMORY_SNAPSHOT].why,
        culprits=ranks if len(ranks) == 1 else (),
        evidence=unique_proofs(p for s in failed for p in _proofs(s)),
        fixes=(
            *((Remedy(snapshots.EXPANDABLE),) if says else ()),
            Remedy(codes.CONCLUSIONS[codes.MEMORY_SNAPSHOT].fix),
        ),
    )
    return [Candidate(SCORE, conclusion)]


def supported(view: View, conclusion: Conclusion) -> Conclusion:
    """An out-of-memory error of the logs with what the snapshots of its ranks show."""
    if conclusion.code == FULL_STATE_OOM or conclusion.code not in OOM_CODES | {codes.OOM_AT_SAVE}:
        return conclusion
    own = [
        s
        for s in view.incident.snapshots
        if s.rank is None or not conclusion.culprits or s.rank in conclusion.culprits
    ]
    if not own:
        return conclusion
    says = [f for s in own for d in s.devices if (f := snapshots.fragments(d, s.ooms))]
    proofs = [p for s in own[:2] for p in _proofs(s)[:SUPPORT]]
    fixes = conclusion.fixes
    if says and not any("expandable_segments" in f.text for f in fixes):
        fixes = (*fixes, Remedy(snapshots.EXPANDABLE))
    return replace(
        conclusion,
        why=conclusion.why + "".join(f" {s}." for s in says),
        evidence=unique_proofs((*conclusion.evidence[: MAX_PROOFS - SUPPORT], *proofs)),
        fixes=fixes,
        explained=tuple(sorted({*conclusion.explained, codes.MEMORY_SNAPSHOT})),
    )


def _proofs(snapshot: MemorySnapshot) -> list[Proof]:
    return [Proof(snapshot.path, 0, snapshot.rank, None, text) for text in snapshots.said(snapshot)]
