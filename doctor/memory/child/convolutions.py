"""What one convolution takes, in the order in which ATen asks for it (ConvShared.cpp).

Which of cuDNN's kernels a layer gets, and so which copies lie in its workspace, is in `convolution_kernels`.
"""

from __future__ import annotations

from typing import Any

import torch

from . import convolution_kernels as kernels
from .convolution_layer import Layer
from .course import Course, copied
from .reductions import buffers


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
) -> Course:
    """The result, copies of operands that are not laid out as cuDNN is told, the workspace."""
    groups = rest[-1]
    course = Course().results()
    if as_it_is(x, w, transposed, groups):
        return course
    places = _places(x, w.shape[2:], stride, padding, dilation, transposed)
    layer = Layer.of(x, w, places, stride, transposed, groups)
    return course.take(copied(w), copied(x), kernels.forward(layer))


def backward(processors: int, go: Any, x: Any, w: Any, *args: Any, **__: Any) -> Course:
    """The input's gradient and its workspace, the weight's and its, and how the bias's is summed."""
    stride, transposed, groups, mask = args[1], args[4], args[6], args[7]
    course = Course()
    if as_it_is(x, w, transposed, groups):
        first = by_channel(x, groups, transposed) and x.dim() < 5  # DepthwiseConv2d.cu: the weight's
        course.result(int(first)).result(int(not first))
    else:
        layer = Layer.of(x, w, go.numel() // go.shape[1], stride, transposed, groups)
        of_go = 0 if transposed else copied(go)
        throughout = course.hold(copied(go) if transposed else 0)
        course.result(0)
        if mask[0]:
            held = course.hold(copied(w), of_go)
            course.lend(kernels.backward_input(layer)).give(*held)
        held = course.hold(of_go, copied(x)) if mask[1] else []
        course.result(1)
        if mask[1]:
            course.lend(kernels.backward_weight(layer, processors)).give(*held)
        course.give(*throughout)
    course.result(2)
    return course.take(*(buffers(go, [0, *range(2, go.dim())], processors) if mask[2] else ()))


def as_it_is(x: Any, w: Any, transposed: Any, groups: Any) -> bool:
    """Whether cuDNN or a kernel of torch's takes the tensors without copies in another layout."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] > 1:
        return True
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and x.shape[1] > 1:
        return True
    return by_channel(x, groups, transposed)


def by_channel(x: Any, groups: Any, transposed: Any) -> bool:
    """Whether each channel has a filter of its own."""
    return bool(groups > 1 and groups == x.shape[1] and not transposed)


def _places(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, transposed: Any) -> int:
    """Places of the result, times the batch."""
    n = int(x.shape[0])
    for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation):  # noqa: B905
        n *= (size - 1) * s - 2 * p + k if transposed else (size + 2 * p - d * (k - 1) - 1) // s + 1
    return n
