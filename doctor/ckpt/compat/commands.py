"""Commands that a fix names, for the checkpoint at hand."""

from __future__ import annotations

import shlex

from fsdp_doctor.ckpt.compat.question import PER_RANK, Question
from fsdp_doctor.ckpt.convert.model import ConvertError
from fsdp_doctor.ckpt.convert.sources import refuse
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Container, FileRole, Format, Kind

PLAIN = frozenset({"int", "float", "bool", "str", "bytes", "NoneType", "list", "tuple", "dict", "set"})
"""Types of values that `convert` writes again."""


def convert(question: Question, to: str, *options: str) -> str | None:
    """`fsdp-doctor ckpt convert` of this checkpoint into a place beside it; None where it would refuse."""
    index = question.index
    try:
        refuse(index)
    except ConvertError:
        return None
    if to != "merge-metadata" and _more_than_model(index):
        options = (*options, "--model-only")
    path = index.path.rstrip("/") or "."
    target = f"{path}-{'merged' if to == 'merge-metadata' else to}"
    words = ("fsdp-doctor", "ckpt", "convert", path, target, "--to", to, *options)
    return " ".join(shlex.quote(w) for w in words)


def _more_than_model(index: CheckpointIndex) -> bool:
    """Whether it holds what is not written again: objects, and slices of ranks whose place nothing tells."""
    if index.format not in PER_RANK | {Format.TORCH_FULL}:
        return False
    for entry in index.entries:
        kept = entry.type in PLAIN or entry.type.startswith("class torch.") or entry.type == "torch.device"
        data = entry.file is not None and index.files[entry.file].role is FileRole.DATA
        if data and (entry.differs or not kept) and not entry.type.endswith("OrderedDict"):
            return True
    return index.format in PER_RANK and any(
        t.kind is Kind.OPTIMIZER and t.container is Container.TENSOR and t.shape and not t.chunks
        for t in index.tensors
    )
