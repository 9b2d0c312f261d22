"""What FSDP1 puts together from all ranks: optimizer states, and tensors of shards on the host.

Torch gathers optimizer states by what each rank says it holds; here all would say what rank 0 holds. What a
script gets has the names, shapes, dtypes and devices that the job's would have, and no values.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp._common_utils import _get_param_to_fqns
from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles

from .devices import CUDA, GPU, DeviceTracker
from .notes import Notes

SAID = "FSDP.optim_state_dict: shapes without values; the memory of gathering them is not followed"


def install(notes: Notes, tracker: DeviceTracker | None) -> None:
    """Replace FSDP1's calls; without a tracker tensors are real. Holds for the whole process."""
    cls: Any = FullyShardedDataParallel

    def states(model: Any, optim: Any, *_: Any, **__: Any) -> dict[str, Any]:
        notes.add("assumed", SAID)
        settings = cls.get_state_dict_type(model)
        if settings.state_dict_type == StateDictType.LOCAL_STATE_DICT:
            return dict(optim.state_dict())
        whole = settings.state_dict_type == StateDictType.FULL_STATE_DICT
        host = bool(getattr(settings.optim_state_dict_config, "offload_to_cpu", True))
        names, shapes = _get_param_to_fqns(model), _shapes(model)
        found: dict[str, Any] = {}
        held = [p for g in optim.param_groups for p in g["params"]]
        like = next((p for p in held if optim.state.get(p)), None)
        for parameter in held if like is not None else ():
            mine: Any = parameter if optim.state.get(parameter) else like  # which lies on other ranks
            state = optim.state[mine]
            parts = shapes.get(id(parameter)) or [(tuple(parameter.shape), 1)]
            for name, (shape, ranks) in zip(names.get(parameter, ()), parts):  # noqa: B905
                split = shape if whole or not shape else (-(-shape[0] // ranks), *shape[1:])
                found[name] = {
                    key: _made(value, split, host, tracker)
                    if isinstance(value, torch.Tensor) and value.dim() and value.numel() == mine.numel()
                    else value
                    for key, value in state.items()
                }
        groups = [
            {**group, "params": [n for p in group["params"] for n in names.get(p, ())]}
            for group in optim.param_groups
        ]
        return {"state": found, "param_groups": groups}

    cls.optim_state_dict = staticmethod(states)
    if tracker is not None:
        _on_host()


def _shapes(model: Any) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """Original shapes by parameter, each with the ranks that share it; several of a flat parameter."""
    found: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for handle in _get_fsdp_handles(model):
        flat: Any = handle.flat_param
        shapes = [(tuple(shape), int(handle.world_size)) for shape in flat._shapes]
        found[id(flat)] = shapes
        for parameter, shape in zip(flat._params or (), shapes):  # noqa: B905
            found[id(parameter)] = [shape]
    return found


def _made(value: Any, shape: tuple[int, ...], host: bool, tracker: DeviceTracker | None) -> Any:
    if tracker is None:
        return torch.empty(shape, dtype=value.dtype, device="cpu" if host else value.device)
    with tracker.fake if host else nullcontext(), tracker if host else nullcontext():
        return torch.empty(shape, dtype=value.dtype, device="cpu" if host else GPU)


def _on_host() -> None:
    """`ShardedTensor.cpu` asks where its shards are said to be: on `cpu:0`, which is the GPU."""
    kind: Any = ShardedTensor
    real = kind.cpu

    def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        if all(shard.tensor.device != GPU for shard in self.local_shards()):
            return self
        placed = [(m.placement, m.placement.device()) for m in self.metadata().shards_metadata]
        for placement, _ in placed:
            placement._device = CUDA
        try:
            return real(self, *args, **kwargs)
        finally:
            for placement, device in placed:
                placement._device = device

    kind.cpu = cpu
