"""What cuDNN takes for one convolution.

Its fast kernels want the channels last. Tensors that lie otherwise are copied, operands and result alike,
and channels that are too few are filled up. A weight's gradient is summed in parts where places are many and
weights are few. The sizes follow 137 measured convolutions (H200, cuDNN 9.19); another version may take other
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .course import nbytes
from .reductions import buffers

MIB = 1 << 20
FEW = 4
"""Input channels below which a layer is a first one, of images or of sounds."""
MOST_IN_PARTS = 15 * MIB + MIB * 3 // 4
FIXED_PARTS = 15 * MIB // 4
MOST_WIDE_PARTS = 10095744
FEW_PLACES, MANY_PLACES = 1 << 14, 1 << 18
PARTS_OF_ONE = 9 * MIB // 5
FILL = 8
"""Channels are filled up to a multiple of this for kernels of two-byte numbers."""
TILE = 128
PLACES_OF_ONE = 1 << 12
"""Places up to which a kernel of one weight per channel has its operands copied."""


def forward(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    *rest: Any,
    **__: Any,
) -> Sequence[int]:
    """Bytes of the workspace."""
    groups = rest[-1]
    if as_it_is(x, w, transposed, groups):
        return ()
    kernel, item, channels = w.shape[2:], x.element_size(), w.shape[1] * groups if transposed else w.shape[0]
    made = _made(x, kernel, stride, padding, dilation, transposed) * channels * item
    if one(kernel):
        return () if x.shape[0] * x[0, 0].numel() > PLACES_OF_ONE or x.dim() > 4 else (nbytes(x) + made,)
    first = not transposed and x.shape[1] < FEW
    if first and small(kernel):
        return (_filled(x, 4),) if item == 4 and x.dim() == 4 else ()
    if first and x.dim() == 5 and tuple(kernel) == tuple(stride):
        return () if item == 2 else (_filled(x, 4) + _filled(w, 4),)
    fill = FILL if item == 2 else 1
    kept = item == 4 and not transposed and channels == 64 and small(kernel)
    return (_filled(x, fill) + (0 if kept else made) + _filled(w, fill),)


def backward(processors: int, go: Any, x: Any, w: Any, *args: Any, **__: Any) -> Sequence[int]:
    """Bytes of the larger of the two workspaces, for the input's gradient and for the weight's."""
    stride, transposed, groups, mask = args[1], args[4], args[6], args[7]
    if as_it_is(x, w, transposed, groups):
        return buffers(go, [0, *range(2, go.dim())], processors) if mask[2] else ()
    kernel, item, wide = w.shape[2:], x.element_size(), w.numel() * 4
    places = go.numel() // go.shape[1]
    if one(kernel):
        if not mask[1] or (item == 4 and min(go.shape[1], x.shape[1]) < FILL):
            return ()
        if x.dim() > 4:
            fill = FILL if item == 2 else 1
            return (_filled(x, fill) + _filled(go, fill) + nbytes(w) + PARTS_OF_ONE,)
        return (16 * wide,) if item == 4 or places > PLACES_OF_ONE * 2 else (nbytes(x) + nbytes(go),)
    first = not transposed and x.shape[1] < FEW
    fill = FILL if item == 2 else 4 if first else 1
    copies = _filled(x, fill) + _filled(go, fill) + _filled(w, fill)
    if not mask[1]:
        return (copies,)
    if first and tuple(kernel) == tuple(stride):
        if item == 4 or x.dim() == 5:
            return (copies + (_filled(w, fill) if item == 4 and x.dim() == 5 else 0),)
        return (copies + 8 * wide,)
    if first and item == 4 and x.dim() == 4 and small(kernel):
        return ()
    if first and item == 4:
        return (copies,)
    return (copies + _parts(w, wide, places, item, transposed, processors),)


def _parts(w: Any, wide: int, places: int, item: int, transposed: Any, processors: int) -> int:
    """Bytes of fp32 sums that a weight's gradient is made of, where its tiles alone do not fill the GPU."""
    tiles = -(-w.shape[0] // TILE) * -(-(w.numel() // w.shape[0]) // TILE)
    if transposed:
        return 0 if item == 2 else min(8 * wide, 4 * MIB)
    if item == 2:
        if tiles >= processors or places < FEW_PLACES:
            return 0
        if tiles > processors // 4 + 3:
            return FIXED_PARTS
        times = 4 if w.dim() == 5 else 7 if tiles > 18 else 13
        return min(times * wide, MOST_IN_PARTS)
    if w.dim() == 5 and w.shape[1] < 64:
        return min(91 * wide, MOST_WIDE_PARTS) if places >= MANY_PLACES else 4 * wide
    if w.dim() == 5:
        return 16 * 110592 if w.shape[1] == 64 else 2 * wide if w.shape[1] < 256 else 0
    if tiles > processors // 2:
        return min(wide, FIXED_PARTS) if tiles < 288 and places >= FEW_PLACES else 0
    parts: int = min(processors // tiles * wide, MOST_WIDE_PARTS)
    return parts


def as_it_is(x: Any, w: Any, transposed: Any, groups: Any) -> bool:
    """Whether cuDNN or a kernel of torch's takes the tensors without copies in another layout."""
    import torch

    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] > 1:
        return True
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and x.shape[1] > 1:
        return True
    return bool(groups > 1 and groups == x.shape[1] and not transposed)


def one(kernel: Any) -> bool:
    """Whether a kernel looks at one place."""
    return all(k == 1 for k in kernel)


def small(kernel: Any) -> bool:
    """Whether a kernel looks at no more than three places in a row."""
    return all(k <= 3 for k in kernel)


def _made(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, transposed: Any) -> int:
    """Places of the result, times the batch."""
    n = int(x.shape[0])
    for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation):  # noqa: B905
        n *= (size - 1) * s - 2 * p + k if transposed else (size + 2 * p - d * (k - 1) - 1) // s + 1
    return n


def _filled(t: Any, to: int) -> int:
    """Bytes with the channels rounded up."""
    channels = t.shape[1]
    return nbytes(t) // channels * (-(-channels // to) * to) if channels else 0
