"""Connectionist temporal classification, whose tables have the length of the longest target (LossCTC.cu)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .tracker import Tracker


LARGE = 450
"""Of LossCTC.cu: steps, batch and classes from which on the gradient is made in several parts."""


def install() -> None:
    """Take lengths that are lists as tensors: torch writes lists into a tensor, which a fake cannot be."""
    real = torch.ctc_loss

    def ctc_loss(scores: Any, targets: Any, scored: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        scored, lengths = (v if isinstance(v, torch.Tensor) else torch.tensor(v) for v in (scored, lengths))
        return real(scores, targets, scored, lengths, *args, **kwargs)

    torch.ctc_loss = ctc_loss


def longest(lengths: Any) -> int | None:
    """The longest target's length, from numbers or a tensor with values; None where they are not known."""
    if lengths is None:
        return None
    if isinstance(lengths, torch.Tensor):
        with torch._C._DisableTorchDispatch():
            return int(lengths.max()) if lengths.numel() else 0
    return int(max(lengths, default=0))


def assumed(targets: Any, lengths: Any) -> int:
    """As many as fit a row of the targets; where these are one row, an equal part for each sequence."""
    return int(targets.shape[1]) if targets.dim() > 1 else -(-targets.numel() // max(1, lengths.numel()))


def forward(tracker: Tracker, scores: Any, length: int) -> tuple[Any, Any]:
    """A loss per sequence, and the table that is kept for backward."""
    time, batch = scores.shape[0], scores.shape[1] if scores.dim() > 2 else 1
    made = (scores.new_empty(batch), scores.new_empty(batch, time, 2 * length + 1))
    for tensor in made:
        tracker.watch(tensor.untyped_storage(), "aten::_ctc_loss")
    return made


def backward(tracker: Tracker, scores: Any, table: Any, zero_infinity: bool) -> Any:
    """The gradient of the scores; beside it there is a second table for the time of the call.

    Where the problem is large, other operators sum what blanks add, which takes their part of the table
    twice, and with `zero_infinity` the gradient is selected from a first one.
    """
    made = scores.new_empty(scores.shape)
    tracker.watch(made.untyped_storage(), "aten::_ctc_loss_backward")
    item, steps, classes = table.element_size(), int(scores.shape[0]), int(scores.shape[-1])
    second, batch = table.numel() * item, int(table.shape[0])
    stages: list[tuple[int, ...]] = [(second,)]
    if 2 * steps + 24 * batch // 10 + 2 * classes // 10 > LARGE:
        rows = batch * steps * item
        blanks = rows * ((int(table.shape[2]) + 1) // 2)
        stages.append((second, blanks, rows, blanks, rows))
        if zero_infinity:
            stages.append((second, scores.numel() * item))
    for stage in stages:
        tracker.during(stage, "aten::_ctc_loss_backward")
    return made
