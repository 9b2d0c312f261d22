"""What is said where nothing, or only something weak, names a cause; what would decide it next time."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.diagnosis.culprit.candidate import derived
from fsdp_doctor.diagnosis.culprit.lines import NO_INFINIBAND, SOCKETS, STORE_LOST, TAKEN_DOWN, TOLD_TO_STOP
from fsdp_doctor.diagnosis.culprit.proofs import proof, unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Conclusion, Remedy
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_signatures import SIGNATURES

RECORD = (
    "the output of every rank: torchrun --log-dir DIR --redirects 3 --tee 3",
    "the Flight Recorder: TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.8), "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and its files /tmp/nccl_trace_rank_*",
    "the kernel log of every node: dmesg -T",
    "all of that in one: fsdp-doctor run -- torchrun …",
)
MOST_MISSING = 64
"""Ranks up to which those of which nothing is here are named: of more, the logs were never collected."""


def hedged(conclusion: Conclusion) -> Conclusion:
    """A weak conclusion as what it is: it accuses no rank and says what to record."""
    title = conclusion.title
    if conclusion.confidence != "low" or title.lower().startswith("cannot tell"):
        return conclusion
    return replace(
        conclusion,
        title=f"Cannot tell for sure: {title[0].lower()}{title[1:]}",
        culprits=(),
        record_next=conclusion.record_next or RECORD,
    )


def cannot_tell(view: View) -> Conclusion | None:
    """Only consequences are here; None where not even those are, or the job went on after them."""
    hits = _telling(view)
    if not hits or (not view.failed_exits and view.survived(hits[0])):
        return None
    ranks = view.suffering
    said = "these lines are only consequences"
    if ranks:
        report = "reports" if len(ranks) == 1 else "report"
        said = f"{rank_words(ranks)} only {report} waiting or the loss of a peer"
    missing = view.expected - ranks if view.world and (view.waited or view.lost_peer) else frozenset()
    if 0 < len(missing) < MOST_MISSING:
        said += f"; nothing is here from {rank_words(missing)}"
    return derived(
        codes.CANNOT_TELL,
        f"Cannot tell which rank or event caused it: {said}",
        "low",
        victims=ranks,
        evidence=(proof(h) for h in hits),
        record_next=RECORD,
        explained=tuple(sorted({codes.CANNOT_TELL, *(h.code for h in view.hits)})),
    )


def _telling(view: View) -> list[Hit]:
    """The first consequence of each rank, of the most telling sort that there is."""
    last_words = [h for h in view.consequences if h.code not in (STORE_LOST, TAKEN_DOWN)]
    stopped = [h for h in view.hits if h.code == TOLD_TO_STOP]
    hits = last_words or list(view.consequences) or stopped
    return [*{h.origin.rank: h for h in reversed(hits)}.values()][::-1]


def sockets(view: View) -> Conclusion | None:
    """A job over several nodes that uses TCP, where nothing else is wrong."""
    hits = [h for h in view.hits if h.code == SOCKETS]
    nodes = max(len({h.origin.host for h in hits if h.origin.host}), view.incident.job.nodes or 0)
    if not hits or nodes < 2:
        return None
    signature = SIGNATURES[SOCKETS]
    reasons = [h for h in view.hits if h.code == NO_INFINIBAND]
    return Conclusion(
        code=SOCKETS,
        title=f"NCCL uses TCP sockets between {nodes} nodes instead of InfiniBand or RoCE: slow "
        "communication",
        row="slow",
        confidence="medium",
        why=signature.why,
        evidence=unique_proofs(proof(h) for h in (*reasons[:1], *hits[:3])),
        fixes=(Remedy(signature.fix),),
        explained=(SOCKETS, NO_INFINIBAND),
    )
