"""Parameters on the host: on fake tensors host and GPU have the same device, so a rule follows moves."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .tracker import Tracker

FSDP2 = "/torch/distributed/fsdp/_fully_shard/"


def offload(tracker: Tracker) -> None:
    """Let FSDP2's moves of a shard to the GPU and of a gradient to the host make new tensors."""
    real = torch.Tensor.to

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        moves = bool(args) and isinstance(args[0], torch.device)
        if not moves or FSDP2 not in sys._getframe(1).f_code.co_filename.replace("\\", "/"):
            return real(tensor, *args, **kwargs)
        on_host = tracker.is_host(tensor)
        target = torch.empty_like(tensor)
        if on_host:
            _to_device(tracker, target)
        else:
            tracker.to_host(target)
        return target

    torch.Tensor.to = to


def _to_device(tracker: Tracker, tensor: torch.Tensor) -> None:
    entry = tracker.live.get(tensor.untyped_storage()._cdata)
    if entry is not None and entry.host:
        tracker._drop(entry.block, True)
        entry.host = False
        entry.block = tracker._new(entry.size, "copy to the GPU")
