"""Commands that a fix names, for the checkpoint at hand."""

from __future__ import annotations

import shlex

from fsdp_doctor.ckpt.compat.question import Question


def convert(question: Question, to: str, *options: str) -> str:
    """`fsdp-doctor ckpt convert` of this checkpoint into a folder beside it."""
    path = question.index.path.rstrip("/") or "."
    target = f"{path}-{'merged' if to == 'merge-metadata' else to}"
    words = ("fsdp-doctor", "ckpt", "convert", path, target, "--to", to, *options)
    return " ".join(shlex.quote(w) for w in words)
