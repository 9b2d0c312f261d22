"""The training loop that is replayed, or measured: forward, backward, clipping, optimizer, zero_grad."""

from __future__ import annotations

import inspect
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from .loading import Refused
from .sharding import Sharded, alike

WRAPPERS = (FullyShardedDataParallel, DistributedDataParallel)
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adamw_fused": ("AdamW", {"fused": True}),
    "adamw_loop": ("AdamW", {"foreach": False}),
    "adam": ("Adam", {}),
    "adam_fused": ("Adam", {"fused": True}),
    "sgd": ("SGD", {}),
    "sgdm": ("SGD", {"momentum": 0.9}),
    "sgd_fused": ("SGD", {"fused": True}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
    "adafactor": ("Adafactor", {}),
}


def optimizer(model: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    """The optimizer over the parameters that train."""
    name, flags = OPTIMIZERS[kind]
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise Refused("model", "the model has no parameter that requires a gradient")
    groups = [{"params": group} for group in alike(trained)]
    made: torch.optim.Optimizer = getattr(torch.optim, name)(groups, lr=1e-5, **flags)
    return made


def arguments(model: torch.nn.Module, batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with: the batch's values, or those of a dictionary by their names.

    Raises `Refused` where the model's forward does not take them.
    """
    while isinstance(model, WRAPPERS):
        model = model.module
    forward = inspect.signature(model.forward)
    if len(batch) == 1 and isinstance(batch[0], dict) and all(isinstance(k, str) for k in batch[0]):
        with suppress(TypeError):
            forward.bind(**batch[0])
            return (), batch[0]
    try:
        forward.bind(*batch)
    except TypeError as error:
        code, name = getattr(model.forward, "__code__", None), model.forward.__qualname__
        raise Refused(
            "batch",
            f"the batch has {len(batch)} values, and {name}{forward} does not take them: {error}",
            f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "",
        ) from None
    return batch, {}


class Loop:
    """One configuration's steps."""

    def __init__(self, sharded: Sharded, batch: tuple[Any, ...], job: dict[str, Any]) -> None:
        self.sharded, self.job = sharded, job
        self.batch, self.named = arguments(sharded.model, batch)
        self.optimizer = optimizer(sharded.model, job.get("optimizer", "adamw"))
        self.accumulate = int(job.get("accumulate") or 1)
        cast = job.get("autocast")
        self.cast = torch.autocast(sharded.ground.device, getattr(torch, cast)) if cast else None

    def step(self) -> None:
        """One optimizer step with all its microbatches."""
        mark, sharded = self.sharded.ground.mark, self.sharded
        model = sharded.model
        for i in range(self.accumulate):
            sync = not (self.job.get("no_sync") and i < self.accumulate - 1)
            if sharded.api == "fsdp2":
                model.set_requires_gradient_sync(sync)
            quiet = not sync and sharded.api != "fsdp2"
            with model.no_sync() if quiet else nullcontext():
                mark("forward")
                loss = self._loss()
                mark("backward")
                loss.backward()
                del loss
        mark("clip" if self.job.get("clip") else "after backward")
        if self.job.get("clip"):
            sharded.clip()
            mark("after clip")
        mark("optimizer")
        self.optimizer.step()
        mark("after optimizer")
        self.optimizer.zero_grad()
        mark("end of step")

    def _loss(self) -> Any:
        self.sharded.ground.before_forward()
        if self.cast is None:
            return self._scalar(self.sharded.model(*self.batch, **self.named)) / self.accumulate
        with self.cast:
            return self._scalar(self.sharded.model(*self.batch, **self.named)) / self.accumulate

    def _scalar(self, loss: Any) -> Any:
        if not isinstance(loss, torch.Tensor):
            raise Refused(
                "loss",
                f"the model returned {_kind(loss)} and not a scalar loss: "
                "wrap it in a module that returns the loss alone",
            )
        if loss.numel() != 1:
            raise Refused(
                "loss", f"the model returned a tensor of shape {tuple(loss.shape)} and not a scalar loss"
            )
        if not loss.requires_grad:
            raise Refused("loss", "the loss that the model returned depends on no parameter that trains")
        return loss


def _kind(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
