"""DistributedDataParallel on a GPU that is `cpu:0`: a module with its attributes, its reducer by rules."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ..data_parallel import OPTIONS, DataParallel
from .devices import CUDA, DeviceTracker, on_gpu
from .notes import Notes

RULES = "DistributedDataParallel: its reducer is C++, and followed by its rules"
NOT_FOLLOWED = (
    "mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce", "bucket_cap_mb_list",
    "batched_grad_copy", "skip_all_reduce_unused_params",
)  # fmt: skip
"""Arguments that change what is allocated, and of which the rules know nothing."""
KEPT = (
    "dim", "broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph",
    "mixed_precision", "process_group",
)  # fmt: skip
"""Arguments that libraries read off the module."""


def install(tracker: DeviceTracker, notes: Notes) -> None:
    """Replace DistributedDataParallel's own methods. Holds for the whole process."""
    ddp: Any = nn.parallel.DistributedDataParallel
    arguments = inspect.signature(ddp.__init__)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = arguments.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        nn.Module.__init__(self)
        module = given["module"]
        if not any(p.requires_grad for p in module.parameters()):
            raise RuntimeError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that "
                "requires a gradient."
            )
        self.module = module
        for name in KEPT:
            setattr(self, name, given.get(name))
        self.broadcast_buffers = given.get("broadcast_buffers") is not False
        self.device_ids = None if given.get("device_ids") is None else [0]
        self.output_device = None if self.device_ids is None else 0
        self.device, self.device_type = CUDA, "cuda"
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.is_multi_device_module, self.parameters_to_ignore = False, set[str]()
        self.logger = self.reducer = None
        self._use_python_reducer = False
        self._options = {k: given[k] for k in OPTIONS if given.get(k)}
        self._rules = DataParallel(module, tracker, self._options)
        notes.add("assumed", RULES)
        for name in NOT_FOLLOWED:
            if given.get(name):
                notes.add("assumed", f"DistributedDataParallel({name}=…): as if it were not given")
        if getattr(module, "_ddp_params_and_buffers_to_ignore", None):
            notes.add("assumed", "DistributedDataParallel: what it is to ignore has its place in buckets")

    def begin(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if torch.is_grad_enabled():
            self._rules.before_forward()
        if self.device_ids is None:
            return args, kwargs
        return on_gpu(args, kwargs)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = begin(self, *args, **kwargs)
        return self.module(*args, **kwargs)

    def state(self: Any) -> dict[str, Any]:
        """Torch copies the module and makes a reducer for the copy."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_rules", "process_group")
        }

    def restored(self: Any, values: dict[str, Any]) -> None:
        self.process_group = torch.distributed.group.WORLD
        nn.Module.__setstate__(self, values)
        self._rules = DataParallel(self.module, tracker, self._options)

    def hook(self: Any, state: object = None, hook: object = None) -> None:
        chosen = hook or state
        name = getattr(chosen, "__name__", None) or getattr(chosen, "name", type(chosen).__name__)
        notes.add("assumed", f"register_comm_hook({name}): what the hook allocates is not followed")

    def static(self: Any) -> None:
        notes.add("assumed", "_set_static_graph: as if it were not called; static_graph=True is followed")

    ddp.__init__, ddp.forward = init, forward
    ddp._pre_forward, ddp._post_forward = begin, lambda self, output: output  # of `replicate`
    ddp.__getstate__, ddp.__setstate__ = state, restored
    ddp.no_sync = lambda self: self._rules.no_sync()
    ddp.join = lambda self, *_, **__: nullcontext()
    ddp.register_comm_hook = ddp._register_builtin_comm_hook = hook
    ddp._set_static_graph = static
    ddp._sync_buffers = lambda self: None
