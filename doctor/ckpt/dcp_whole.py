"""Whether the chunks that DCP's metadata names make each tensor whole."""

from __future__ import annotations

from fsdp_doctor.ckpt.coverage import coverage
from fsdp_doctor.ckpt.draft import Draft, TensorDraft, counted
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind


def judge_tensors(draft: Draft, folder: str) -> None:
    """Chunks that are outside, overlap, leave a gap or have no place. One problem per cause and tensor."""
    gaps: list[TensorDraft] = []
    lost = 0
    found: dict[str, list[str]] = {"outside": [], "overlap": [], "unplaced": []}
    first_gap = ""
    for tensor in draft.tensors.values():
        if tensor.part != folder:
            continue
        result = coverage(tensor.shape, tensor.place)
        tensor.splits = result.splits
        if result.outside:
            found["outside"].append(tensor.key)
        elif result.overlap:
            found["overlap"].append(tensor.key)
        elif result.missing:
            gaps.append(tensor)
            lost += result.missing
            first_gap = first_gap or f"{tensor.key} {list(tensor.shape)} lacks {result.missing} elements"
        dims = 2 * len(tensor.shape)
        if (
            not (result.outside or result.overlap or result.missing)
            and min(tensor.place[dims + 1 :: dims + 4], default=0) < 0
        ):
            found["unplaced"].append(tensor.key)
    if gaps:
        draft.problem(
            ProblemKind.COVERAGE_GAP,
            Harm.BROKEN,
            f"the chunks of {counted(gaps)} do not cover {'it' if len(gaps) == 1 else 'them'}, and loading "
            f"leaves the gap as it was: {first_gap}",
            folder,
            [t.key for t in gaps],
            bytes=lost,
        )
    words = {
        "outside": (ProblemKind.CHUNK_OUTSIDE, "chunks beyond the shape"),
        "overlap": (ProblemKind.COVERAGE_OVERLAP, "chunks that overlap: which one is loaded is chance"),
        "unplaced": (ProblemKind.CHUNK_UNPLACED, "chunks for which the metadata names no file"),
    }
    for what, (kind, text) in words.items():
        if found[what]:
            verb = "has" if len(found[what]) == 1 else "have"
            draft.problem(kind, Harm.BROKEN, f"{counted(found[what])} {verb} {text}", folder, found[what])
