"""FSDP on a GPU that is `cpu:0`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from . import replicated
from .devices import GPU, DeviceTracker, fake_buffers, on_gpu, translated
from .notes import Notes


def install(tracker: DeviceTracker, notes: Notes) -> None:
    """Let FSDP2, FSDP1 and DDP take fake parameters. Holds for the whole process."""
    _fully_shard(tracker)
    _fully_sharded(tracker, notes)
    replicated.install(tracker, notes)
    bindings: Any = torch._C
    bindings._get_accelerator = lambda *_: torch.device("cpu")
    cpu: Any = torch.cpu
    cpu.current_device = lambda: "cpu:0"


def _fully_shard(tracker: DeviceTracker) -> None:
    import torch.distributed.fsdp._fully_shard._fsdp_init as begin

    device = begin._get_device_from_mesh

    def from_mesh(mesh: Any) -> Any:
        return GPU if mesh.device_type == "cpu" else device(mesh)

    states = begin._get_managed_states

    def managed(modules: Any, *args: Any, **kwargs: Any) -> Any:
        for part in modules:
            fake_buffers(tracker, part)
        return states(modules, *args, **kwargs)

    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("_get_device_from_mesh", from_mesh, device),
        ("_get_managed_states", managed, states),
    )
    for name, function, real in pairs:
        for named, owner in list(sys.modules.items()):
            if named.startswith("torch.distributed.") and vars(owner).get(name) is real:
                setattr(owner, name, function)
    _inputs()


def _inputs() -> None:
    """The root moves what it is called with to its device where that is a GPU; "cpu" is none to torch."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    kind: Any = FSDPState
    real = kind._root_pre_forward

    def before(self: Any, module: Any, args: Any, kwargs: Any) -> Any:
        root = self._state_ctx.iter_forward_root is None
        args, kwargs = real(self, module, args, kwargs)
        if not root or self._device != GPU or not (args or kwargs):
            return args, kwargs
        return on_gpu(args, kwargs)

    kind._root_pre_forward = before


def _fully_sharded(tracker: DeviceTracker, notes: Notes) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    cls: Any = FullyShardedDataParallel
    begin = cls.__init__

    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        fake_buffers(tracker, module)
        device = kwargs.get("device_id")
        if isinstance(device, int) or device is None:
            kwargs["device_id"] = GPU
        else:
            kwargs["device_id"] = translated(device)
        if kwargs.get("sync_module_states"):
            kwargs["sync_module_states"] = False
            notes.add("handled", "FSDP(sync_module_states=True): nothing is sent")
        begin(self, module, *args, **kwargs)

    cls.__init__ = init
