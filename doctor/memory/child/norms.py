"""What norms take for the time of one call, and in which order their results come."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .course import Course, copied
from .reductions import power_of_two

HALF = (torch.float16, torch.bfloat16)
THREADS, TILE, EACH, MOST_BLOCKS, FEWEST_BLOCKS = 512, 32, 16, 128, 8
"""A block of threads, its channels and a thread's rows; how many blocks share them (Normalization.cuh)."""


def layer_norm(x: Any, *_: Any, **__: Any) -> Course:
    """A copy of an input that is not contiguous."""
    return Course().take(copied(x)).results()


def layer_norm_backward(go: Any, x: Any, *_: Any, **__: Any) -> Course:
    """Copies of input and gradient where they are not contiguous; the gradient's comes last."""
    return Course().take(copied(x)).results().take(copied(go))


def group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, *_: Any) -> Sequence[int]:
    """Scale and shift of each channel of each sample, in float32, where there are any."""
    return (4 * n * c, 4 * n * c) if hxw > 1 and (weight is not None or bias is not None) else ()


def group_norm_backward(
    grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, hxw: int, group: int, *_: Any
) -> Course:
    """Two sums per channel of each sample, two per group, and a factor per channel, in float32."""
    course = Course().results().take(4 * n * c, 4 * n * c, 4 * n * group, 4 * n * group)
    if weight is not None:
        course.take(4 * n * c)
    return course.give(4, 3)


def batch_norm(x: Any, weight: Any, *_: Any) -> Course:
    """With the channels last, means and deviations of blocks of rows."""
    course = Course().results()
    return course.take(*_staged(x, 4)) if _torchs(x, weight) and _last(x) else course


def batch_norm_backward(
    go: Any, x: Any, weight: Any, mean: Any, *_: Any, **__: Any
) -> Sequence[int] | Course:
    """CUDA's check of types, which the CPU lets pass: cast parameters beside buffers that are not.

    With the channels last two sums per channel come first, and two of each block of rows.
    """
    if weight is not None and mean is not None and weight.dtype in HALF and mean.dtype != weight.dtype:
        names = {torch.bfloat16: "BFloat16", torch.float16: "Half"}
        raise RuntimeError(f"Expected running_mean to have type {names[weight.dtype]} but got Float")
    if not _torchs(x, weight) or not _last(x):
        return ()
    c = 4 * int(x.shape[1])
    course = Course().take(c, c).result(1).result(2)
    if _last(go):
        course.give(*course.hold(*_staged(x, 2)))
    return course.result(0)


def _torchs(x: Any, weight: Any) -> bool:
    """Whether torch's own kernel runs: cuDNN takes three dimensions and more with fp32 weights, no bf16."""
    cudnn = x.dtype != torch.bfloat16 and weight is not None and weight.dtype == torch.float32
    return not (cudnn and x.dim() >= 3)


def _last(x: Any) -> bool:
    """Whether the channels lie innermost."""
    if x.is_contiguous():
        return x.dim() >= 2 and int(x.stride(1)) == 1
    return x.dim() == 4 and bool(x.is_contiguous(memory_format=torch.channels_last))


def _staged(x: Any, values: int) -> tuple[int, ...]:
    """fp32 values of each channel of each block of rows, and a semaphore for each column of blocks."""
    channels = int(x.shape[1])
    rows = prod(int(s) for s in x.shape) // max(1, channels)
    wide = min(power_of_two(channels), TILE)
    high = min(power_of_two(-(-rows // EACH)), THREADS // wide)
    if wide * high != THREADS:
        wide = min(power_of_two(channels), THREADS // high)
    blocks = min(-(-rows // (high * EACH)), MOST_BLOCKS)
    if blocks < FEWEST_BLOCKS:
        return ()
    return (4 * values * channels * blocks, 4 * -(-channels // wide))
