"""On which stream the autograd engine runs a node: the one that was current when its forward ran.

FSDP1 makes the views of a gathered unit while its unshard stream is current. The unit's gradient is therefore
put together on that stream, and so runs the hook that reduces it. Gradients that come from another stream are
recorded on it by the engine. CPU has no streams in the engine, so that nodes bear a note here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

STREAM = "fsdp_doctor_stream"
_noted: list[bool] = []
"""Not empty once any node bears a note: to look for one costs each node a dictionary."""


def note(tensor: torch.Tensor, stream: object) -> None:
    """Let the nodes that made a tensor run on a stream, down to the leaf's; those with a note keep it."""
    _noted[:] = [True]
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and STREAM not in node.metadata:
            node.metadata[STREAM] = stream
            waiting += [following for following, _ in node.next_functions]


def running() -> Any:
    """The stream of the node that runs; None where it has no note."""
    node = torch._C._current_autograd_node() if _noted else None
    return None if node is None else node.metadata.get(STREAM)


def follow() -> None:
    """Note the stream of each view of a flat parameter."""
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    for name in ("_get_unflat_views_aligned", "_get_unflat_views_unaligned"):
        if hasattr(FlatParamHandle, name):
            setattr(FlatParamHandle, name, _noting(getattr(FlatParamHandle, name)))


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> list[Any]:
        views = list(function(*args, **kwargs))
        for view in views:
            note(view, torch.cpu.current_stream())
        return views

    return wrapped
