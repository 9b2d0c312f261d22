"""What operators over rows take for the time of one call: softmax, logsumexp, running sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .course import Course, copied, nbytes, scan_space


def softmax(x: Any, *_: Any, **__: Any) -> Course:
    """A copy of an input that is not contiguous, for the kernel alone."""
    return Course().results().lend(copied(x))


def safe_softmax(x: Any, dim: int, *_: Any, **__: Any) -> Course:
    """Which elements are -inf, in which rows all are, and the zero that is put there."""
    course = softmax(x).take(x.numel(), x.numel() // max(1, int(x.shape[dim])))
    return course.take(x.element_size())


def softmax_backward(go: Any, output: Any, *_: Any, **__: Any) -> Sequence[int]:
    """The gradient times the result."""
    return (nbytes(output),)


def logsumexp(x: Any, dims: Any, *_: Any, **__: Any) -> Course:
    """The largest of each row, its absolute value, whether that is inf, and the powers, before the result."""
    of_rows = x.numel() // max(1, _length(x, dims))
    course = Course().take(of_rows * x.element_size(), of_rows * x.element_size(), of_rows).give(3, 2)
    return course.take(nbytes(x)).results().give(4)


def cumsum(x: Any, dim: int, *_: Any, dtype: Any = None, **__: Any) -> Course:
    """A wider copy of small numbers; what cub takes where there is one row."""
    wide = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    course = Course().results().take(0 if wide == x.dtype else int(x.numel()) * wide.itemsize)
    one = x.dim() > 0 and int(x.numel()) == int(x.shape[dim])
    return course.lend(scan_space(int(x.numel()), wide.itemsize)) if one and x.is_contiguous() else course


def _length(x: Any, dims: Any) -> int:
    n = 1
    for d in [dims] if isinstance(dims, int) else dims or range(x.dim()):
        n *= int(x.shape[d])
    return n
