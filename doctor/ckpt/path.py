"""A path as it was given: whether it is a URL, and the index of one that cannot be read at all.

Light on purpose: the process that only asks needs nothing of what reads.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp_doctor.subjects.checkpoint import CheckpointIndex
    from fsdp_doctor.subjects.checkpoint_problem import ProblemKind


def is_remote(path: str) -> bool:
    """Whether a path names a file system of fsspec, such as s3://bucket/step-100."""
    scheme, mark, _ = path.partition("://")
    return bool(mark) and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()


def text(value: str) -> str:
    """A text that can be encoded: bytes that were no UTF-8 are shown as escapes."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")


def failed(path: str, kind: ProblemKind, detail: str) -> CheckpointIndex:
    """An index of something that could not be read at all."""
    from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format
    from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem

    problem = Problem(kind, Harm.BROKEN, text(detail))
    return CheckpointIndex(text(path), Format.UNKNOWN, problems=(problem,), scanned_at=time.time())
