"""An optimizer's step on the local shards themselves, where DTensor would only pass it on to them.

An element-wise step of sharded parameters is the same step of each rank's shards: DTensor looks up for each
list of tensors how its results are sharded, and calls the same operators on the shards. To look it up takes
several times as long as the step, so that a replay leaves it out. Every other optimizer, such as one that
takes norms of whole rows, keeps its DTensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import optimizer as optimizers

optim = torch.optim
ELEMENTWISE = (optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop, optim.Adagrad)


def of_shards(made: torch.optim.Optimizer) -> Any:
    """The optimizer, or one with the same `step` and `zero_grad` that allocates and frees the same."""
    elementwise = isinstance(made, ELEMENTWISE)
    # where DTensors are no reason for the multi-tensor way, shards must not be one either
    listed = DTensor in getattr(optimizers, "_foreach_supported_types", ())
    sharded = any(isinstance(p, DTensor) for group in made.param_groups for p in group["params"])
    return ShardSteps(made) if elementwise and listed and sharded else made


class ShardSteps:
    """Steps the shards of an optimizer's parameters."""

    def __init__(self, made: torch.optim.Optimizer) -> None:
        self._made = made
        self._whole: list[list[Any]] = [list(group["params"]) for group in made.param_groups]
        self._known: dict[int, Any] = {}

    def step(self) -> None:
        """One step; gradients stay with the parameters."""
        for group, whole in zip(self._made.param_groups, self._whole, strict=True):
            group["params"] = [self._local(p) for p in whole]
        self._made.step()
        for local in self._known.values():
            local.grad = None

    def zero_grad(self) -> None:
        """Give the gradients up, one parameter after the other, as `Optimizer.zero_grad` does."""
        for whole in self._whole:
            for p in whole:
                p.grad = None

    def _local(self, p: Any) -> Any:
        """The shard of a parameter, with its shard of the gradient; its state follows."""
        if not isinstance(p, DTensor):
            return p
        local, before = p._local_tensor, self._known.get(id(p), p)
        if before is not local:
            if before in self._made.state:  # FSDP made the shard anew, or the optimizer began with its state
                held = self._made.state.pop(before)
                self._made.state[local] = {k: getattr(v, "_local_tensor", v) for k, v in held.items()}
            self._known[id(p)] = local
        local.grad = None if p.grad is None else p.grad._local_tensor
        return local
