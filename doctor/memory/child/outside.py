"""Numbers and small tensors that a program makes on the host, and their copies on the GPU.

All tensors of a replay are of one device, so that what Python makes of a number without naming a device looks
like any other. It is told by where it comes from: no operator made it, as far as the tracker saw.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .tracker import Tracker

aten = torch.ops.aten
CHOICES = (aten.where.self,)
"""Operators that take a number to the GPU first."""
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)
ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.div.Tensor_mode)
MOST = 1 << 12
"""Elements of a list by which a tensor is indexed."""


def number(tracker: Tracker, t: Any) -> bool:
    """Whether a tensor is a number of the host."""
    if t.dim():
        return False
    entry = tracker.live.get(t.untyped_storage()._cdata)
    return entry is None or entry.host


def reckoned(func: Any, first: Any) -> bool:
    """Whether numbers alone are reckoned with, as in `torch.div(3, 2)`."""
    return func in ARITHMETIC and isinstance(first, (int, float))


def moved(tracker: Tracker, func: Any, args: Any, out: Any) -> Iterator[int]:
    """Bytes of the numbers that a call copies to the GPU for its time."""
    if func in CHOICES:
        yield from (
            out.element_size()
            for t in args
            if isinstance(t, torch.Tensor) and out.dim() and number(tracker, t)
        )


def listed(tracker: Tracker, func: Any, args: Any) -> None:
    """Indexing by a list of numbers takes them to the GPU, where they stay for backward."""
    if func in INDEXED:
        for i in args[1]:
            if i is not None and i.dim() and i.numel() <= MOST:
                tracker.watch(i.untyped_storage(), func._schema.name)
                tracker.to_device(i)


def made_there(tracker: Tracker) -> None:
    """`torch.tensor` with a device makes its tensor there."""
    real = torch.tensor

    @functools.wraps(real)
    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        made = real(data, *args, **kwargs)
        device = kwargs.get("device")
        if device is not None and device != "cpu" and not tracker.paused and not tracker.host:
            tracker.to_device(made)
        return made

    torch.tensor = tensor
