"""Where the autograd engine works in place on plain tensors, and out of place on those of a subclass as ours.

It adds gradients into the one that came first, and formulas of derivatives fill zeros that they have just
made; for a subclass of Tensor both call the functional operator, whose result needs memory of its own. The
same goes for attention that adds a mask to its scores (attention.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import used

aten = torch.ops.aten
ANYWHERE = frozenset(
    (
        aten.add.Tensor,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.masked_scatter.default,
        aten.index_add.default,
        aten.index_put.default,
    )
)
LOGITS = "BinaryCrossEntropyWithLogitsBackward0"
IN_A_NODE = dict.fromkeys((aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), LOGITS)
"""Operators that are in place in one kind of node alone."""


_scores: list[None] = []
"""One for each call of attention that runs."""


@contextmanager
def of_scores() -> Iterator[None]:
    """The only sum inside is that of scores and mask."""
    _scores.append(None)
    try:
        yield
    finally:
        _scores.pop()


def in_place(func: Any, in_backward: bool) -> bool:
    """Whether this call would be in place; the caller has to make sure that it may be."""
    if _scores and func is aten.add.Tensor:
        return True
    if not in_backward:
        return False
    node = IN_A_NODE.get(func)
    if node is None and func not in ANYWHERE:
        return False
    if node is not None:
        running = torch._C._current_autograd_node()
        if running is None or running.name() != node:
            return False
    found = called_by_engine(3)
    if found:
        used.note("gradient sums")
    return found


def called_by_engine(above: int = 2) -> bool:
    """Whether no Python stands between the autograd engine and the dispatch, so many frames above."""
    frame: Any = sys._getframe(above)
    while frame and frame.f_code.co_filename.endswith(("_compile.py", "eval_frame.py")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"
