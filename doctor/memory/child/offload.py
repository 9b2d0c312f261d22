"""Parameters on the host: on fake tensors host and GPU have the same device, so rules follow the moves.

FSDP2 moves a shard to the GPU to gather it and a reduced gradient to the host. FSDP1 keeps the flat
parameter's shard and a gradient of its size on the host. Both pin what they keep there.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .tracker import Tracker

FSDP = "/torch/distributed/fsdp/"


def offload(tracker: Tracker, api: str) -> None:
    """Let torch's code for one API move tensors between host and GPU; it holds for the whole process."""
    moves = Moves(tracker)
    moves.follow()
    if api == "fsdp1":
        _flat_parameters(moves)


class Moves:
    """Makes the copies that fake tensors leave out."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._pinned: set[int] = set()

    def to_host(self, like: torch.Tensor, pinned: bool) -> torch.Tensor:
        """A new tensor of this form on the host."""
        tracker = self.tracker
        before = tracker.host, tracker.pinned, tracker.label
        tracker.host, tracker.pinned, tracker.label = True, pinned, "host copy"
        try:
            made = torch.empty(like.shape, dtype=like.dtype)
        finally:
            tracker.host, tracker.pinned, tracker.label = before
        entry = tracker.live.get(made.untyped_storage()._cdata)
        if pinned and entry is not None:
            self._pinned.add(entry.block)
        return made

    def to_gpu(self, like: torch.Tensor) -> torch.Tensor:
        """A new tensor of this form on the GPU."""
        before, self.tracker.label = self.tracker.label, self.tracker.label or "fsdp: copy to the GPU"
        try:
            return torch.empty(like.shape, dtype=like.dtype)
        finally:
            self.tracker.label = before

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is pinned."""
        entry = self.tracker.live.get(tensor.untyped_storage()._cdata)
        return entry is not None and entry.block in self._pinned

    def follow(self) -> None:
        """Take the place of `Tensor.to` where FSDP calls it, and of `pin_memory`."""
        real, tracker = torch.Tensor.to, self.tracker

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename.replace("\\", "/")
            if not args or not isinstance(args[0], torch.device) or FSDP not in caller:
                return real(tensor, *args, **kwargs)
            if tracker.is_host(tensor):
                return self.to_gpu(tensor)
            if caller.endswith("_fsdp_collectives.py"):
                return self.to_host(tensor, pinned=bool(kwargs.get("non_blocking")))
            return real(tensor, *args, **kwargs)

        def pin_memory(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
            return tensor if self.is_pinned(tensor) else self.to_host(tensor, pinned=True)

        def is_pinned(tensor: torch.Tensor, *_: Any) -> bool:
            return self.is_pinned(tensor)

        torch.Tensor.to, torch.Tensor.pin_memory, torch.Tensor.is_pinned = to, pin_memory, is_pinned


def _flat_parameters(moves: Moves) -> None:
    """FSDP1 asks where a tensor is in four places; each would find all of them on the same device."""
    import torch.distributed.fsdp._init_utils as init_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    tracker = moves.tracker
    make, attributes = init_utils._init_param_handle_from_params, FlatParamHandle.init_flat_param_attributes
    pre_unshard, backward = FlatParamHandle.pre_unshard, FlatParamHandle.prepare_gradient_for_backward

    def made(state: Any, params: Any, module: Any) -> None:
        make(state, params, module)
        handle = state._handle
        if handle is None or not params:
            return
        handle.flat_param.data = moves.to_host(handle.flat_param, pinned=False)
        if not handle._use_orig_params:
            return
        if handle.is_sharded(handle.flat_param):
            handle._use_sharded_views()
        else:
            handle._use_unsharded_views(as_params=True)

    def with_attributes(handle: Any) -> None:
        real = torch.empty_like

        def on_gpu(like: torch.Tensor, *, dtype: Any = None, **_: Any) -> torch.Tensor:
            return torch.empty(like.shape, dtype=dtype or like.dtype)

        torch.empty_like = on_gpu  # the low-precision shard is one like the host's, on the GPU
        try:
            attributes(handle)
        finally:
            torch.empty_like = real

    def moved(handle: Any) -> bool:
        ran = bool(pre_unshard(handle))
        if tracker.is_host(handle.flat_param):
            handle.flat_param_to(handle.device, non_blocking=True)
            ran = True
        return ran

    def prepared(handle: Any) -> None:
        grad = handle.flat_param.grad
        if grad is not None and tracker.is_host(grad):
            handle.flat_param.grad = None  # the step before left it; it is written anew
        backward(handle)

    init_utils._init_param_handle_from_params = made
    FlatParamHandle.init_flat_param_attributes = with_attributes
    FlatParamHandle.pre_unshard, FlatParamHandle.prepare_gradient_for_backward = moved, prepared
