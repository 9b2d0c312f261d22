"""What the backends of attention take for the time of one call, by shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .course import Course, nbytes


def flash_backward(go: Any, q: Any, k: Any, v: Any, out: Any, *_: Any, **__: Any) -> Sequence[int]:
    """Copies where heads are not innermost, then what flash_api.cpp allocates."""
    b, h, t, d = q.shape
    rows, columns = -(-t // 128) * 128, -(-d // 32) * 32
    copies = [nbytes(x) for x in (go, out) if not x.transpose(1, 2).is_contiguous()]
    return (*copies, b * h * rows * 4, b * rows * h * columns * 4)  # softmax_d, dq accumulated in fp32


def cudnn_forward(q: Any, *_: Any, **__: Any) -> Sequence[int]:
    """A block of the smallest size, whatever the shape, but for one row."""
    return (256,) if q.shape[2] > 1 else ()


def cudnn_backward(go: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Sequence[int]:
    """fp32 dq, one value per row; with fewer heads of k and v than of q, dk and dv for every head of q."""
    b, h, t, d = q.shape
    shared = b * h * k.shape[2] * (d + v.shape[3]) * q.element_size() if k.shape[1] != h else 0
    return (b * h * t * 4 + b * h * t * d * 4 + 256 + shared,)


def efficient_forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Sequence[int]:
    """Wide heads do not fit a kernel's registers: the result is summed in fp32 first."""
    wide = v.shape[-1]
    return (q.numel() // q.shape[-1] * wide * 4,) if wide > 256 and q.element_size() == 2 else ()


def efficient_results(_args: Any, _kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """The state of the random numbers stays on the host."""
    yield from ((t, 0) for t in out[2:4])


def efficient_backward(go: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Course:
    """A dq in fp32 by blocks of rows, one value per row; in fp32 in two stages."""
    b, h, t, d = q.shape
    block = 128 if q.element_size() == 2 and d > 64 else 64
    rows = -(-t // block) * block
    wide = 64 if d <= 64 else 128 if d <= 128 else d
    space = b * h * (rows * wide * 4 + rows // block * 16)
    if d > 128:
        space = space * 5 // 2
    delta = b * h * t * 4
    course = Course().results()
    if q.dtype == torch.float32:
        return course.take(nbytes(q), delta, delta).give(2, 1).take(space).give(3)
    return course.take(delta, space).give(1)
