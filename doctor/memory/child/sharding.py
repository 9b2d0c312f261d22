"""The model sharded as asked: the real FSDP2, FSDP1 or DDP bookkeeping over a fake process group.

Where tensors live, and whether they are fakes, is the ground's matter: replays and measurements share this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from .blocks import repeated
from .data_parallel import options
from .ground import Ground
from .loading import Refused
from .ties import Ties

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}


def dtype(name: str | None) -> Any:
    """A torch dtype by name; None stays None."""
    return getattr(torch, name) if name else None


def start_group(world: int) -> None:
    """A process group of `world` ranks, of which this is rank 0, and which moves no byte."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(world))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)


def classes(model: nn.Module, names: Iterable[str], flag: str) -> set[type[nn.Module]]:
    """The classes of modules in the model by their names. Raises `Refused` for one that is not there."""
    known: dict[str, set[type[nn.Module]]] = {}
    for module in model.modules():
        known.setdefault(type(module).__name__, set()).add(type(module))
    missing = [n for n in names if n not in known]
    if missing:
        said = ", ".join(f"{n} ({c} of them)" for n, c, _ in repeated(model)[:6]) or "none"
        raise Refused(
            "class",
            f"{flag}: the model has no module of class {', '.join(missing)}; repeated blocks in it: {said}",
        )
    return {kind for n in names for kind in known[n]}


class Sharded:
    """A model under one API, and how it is asked to sync, to clip and to be made."""

    def __init__(self, model: nn.Module, job: dict[str, Any], ground: Ground) -> None:
        self.model, self.job, self.ground = model, job, ground
        self.api: str = job["api"]
        self.world: int = job["world_size"]
        self.wrap = classes(model, job.get("wrap") or (), "--wrap")
        self.checkpoint = classes(model, job.get("checkpoint") or (), "--checkpoint-activations")
        kept_out = classes(model, job.get("ignored") or (), "--ignored-modules")
        self.ignored = [m for m in model.modules() if type(m) in kept_out]
        self.param_dtype, self.reduce_dtype = dtype(job.get("param_dtype")), dtype(job.get("reduce_dtype"))
        self.mesh = None if self.api == "ddp" else self._mesh()

    def _mesh(self) -> Any:
        device = self.ground.device
        shard = self.job.get("shard_size")
        if self.job["strategy"] in HYBRID and not shard:
            shard = min(int(self.job.get("ranks_per_node") or 8), self.world)
        if shard and self.world % shard:
            raise Refused("world", f"--shard-size {shard} does not divide --world-size {self.world}")
        if shard and (self.api == "fsdp2" or self.job["strategy"] in HYBRID):
            return init_device_mesh(
                device, (self.world // shard, shard), mesh_dim_names=("replicate", "shard")
            )
        return init_device_mesh(device, (self.world,))

    def on_meta(self) -> None:
        """What has to be done on meta parameters, outside fake tensors: FSDP2 builds meshes then."""
        if self.api != "fsdp2":
            return
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        self._activation_checkpointing()
        strategy: str = self.job["strategy"]
        reshard: bool | int = strategy not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
        if strategy.startswith("RESHARD_INT:"):
            reshard = int(strategy.partition(":")[2])
        more: dict[str, Any] = {"mesh": self.mesh}
        more["mp_policy"] = MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype)
        if self.ignored:
            more["ignored_params"] = {p for m in self.ignored for p in m.parameters()}
        if self.job.get("offload"):
            more["offload_policy"] = CPUOffloadPolicy(pin_memory=self.ground.pins)
        units = [m for m in self.model.modules() if type(m) in self.wrap]  # fully_shard changes their class
        for module in reversed(units):
            fully_shard(module, reshard_after_forward=reshard, **more)
        fully_shard(self.model, reshard_after_forward=reshard if isinstance(reshard, bool) else True, **more)
        self._prefetch([m for m in units if m is not self.model])

    def _prefetch(self, units: list[Any]) -> None:
        """Let each unit gather its next ones ahead, in the order in which the first forward enters them."""
        ahead = int(self.job.get("forward_prefetch") or 0)
        behind = int(self.job.get("backward_prefetch") or 0)
        entered: dict[Any, None] = {}

        def note(module: nn.Module, _args: object) -> None:
            entered.setdefault(module)

        def known(*_: object) -> None:
            for handle in handles:
                handle.remove()
            order = list(entered)
            for i, unit in enumerate(order):
                if ahead and i + 1 < len(order):
                    unit.set_modules_to_forward_prefetch(order[i + 1 : i + 1 + ahead])
                if behind and i:
                    unit.set_modules_to_backward_prefetch(order[max(0, i - behind) : i][::-1])

        if ahead or behind:
            handles = [unit.register_forward_pre_hook(note) for unit in units]
            handles.append(self.model.register_forward_hook(known))

    def placed(self) -> nn.Module:
        """Give the parameters memory and, for FSDP1 and DDP, wrap."""
        ground, model = self.ground, self.model
        ties = Ties(model, kept=bool(self.job.get("keep_ties")))
        if self.api == "fsdp2":
            ground.place_shards(model, bool(self.job.get("offload")))
            if self.job.get("offload"):
                self._place_ignored()
        elif self.api == "ddp":
            self._activation_checkpointing()
            model = self.model = ground.data_parallel(model, options(self.job), ties.whole)
        else:
            if self.job.get("offload"):
                ground.keep_on_host(self.api)
            self._place_ignored()
            model = self.model = FullyShardedDataParallel(
                model,
                auto_wrap_policy=ModuleWrapPolicy(self.wrap) if self.wrap else None,
                param_init_fn=ties.after(ground.place_module),
                device_id=torch.device(ground.device, 0) if ground.device != "cpu" else torch.device("cpu"),
                use_orig_params=self.job.get("use_orig_params", True),
                ignored_modules=self.ignored or None,
                sharding_strategy=ShardingStrategy[self.job["strategy"]],
                device_mesh=self.mesh if self.job["strategy"] in HYBRID else None,
                backward_prefetch=PREFETCH[self.job.get("backward_prefetch") or "pre"],
                forward_prefetch=bool(self.job.get("forward_prefetch")),
                limit_all_gathers=self.job.get("limit_all_gathers", True),
                cpu_offload=CPUOffload(offload_params=True) if self.job.get("offload") else None,
                mixed_precision=MixedPrecision(
                    param_dtype=self.param_dtype,
                    reduce_dtype=self.reduce_dtype,
                    buffer_dtype=self.param_dtype,
                )
                if self.param_dtype or self.reduce_dtype
                else None,
            )
            self._activation_checkpointing()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = ground.buffer(buffer)
        model.train()
        return model

    def _place_ignored(self) -> None:
        """FSDP neither makes nor moves what it is told to ignore: the script has put it on the GPU."""
        for module in {id(m): m for kept in self.ignored for m in kept.modules()}.values():
            self.ground.place_module(module)

    def _activation_checkpointing(self) -> None:
        if self.checkpoint:
            apply_activation_checkpointing(
                self.model,
                checkpoint_wrapper_fn=checkpoint_wrapper,
                check_fn=lambda m: type(m) in self.checkpoint,
            )

    def clip(self) -> None:
        """Clip by the global norm, as each API has it done."""
        if self.api == "fsdp1":
            self.model.clip_grad_norm_(1.0)
        else:
            for group in alike(self.model.parameters()):
                torch.nn.utils.clip_grad_norm_(group, 1.0)


def alike(parameters: Iterable[Any]) -> list[list[Any]]:
    """Sharded parameters and plain ones apart: one call of torch's takes either, not both."""
    groups: dict[bool, list[Any]] = {}
    for p in parameters:
        groups.setdefault(isinstance(p, DTensor), []).append(p)
    return list(groups.values())
