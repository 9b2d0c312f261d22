"""The training loop that is replayed, or measured: forward, backward, clipping, optimizer, zero_grad."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from .building import named, place_of_function
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
    forward = inspect.signature(_plain(model).forward)
    if keys(batch):
        with suppress(TypeError):
            forward.bind(**batch[0])
            return (), dict(batch[0])
    try:
        forward.bind(*batch)
    except TypeError as error:
        called = _plain(model).forward
        given, them = (f"{len(batch)} values", "them") if len(batch) != 1 else ("one value", "it")
        raise Refused(
            "batch",
            f"the batch has {given}, and {called.__qualname__}{forward} does not take {them}: {error}"
            + unnamed(model, batch),
            place_of_function(called),
        ) from None
    return batch, {}


def keys(batch: tuple[Any, ...]) -> list[str]:
    """The names in a batch that is one mapping of names to values; none for any other."""
    if len(batch) == 1 and isinstance(batch[0], Mapping) and all(isinstance(k, str) for k in batch[0]):
        return list(batch[0])
    return []


def unnamed(model: torch.nn.Module, batch: tuple[Any, ...]) -> str:
    """For a mapping that is passed as one value because its names are not those of the arguments; else ""."""
    if not keys(batch):
        return ""
    forward = _plain(model).forward
    wanted = [n for n, p in inspect.signature(forward).parameters.items() if p.kind is not p.VAR_KEYWORD]
    return (
        f" (the batch has the names {', '.join(keys(batch))}; {forward.__qualname__} has "
        f"{', '.join(wanted) or 'none'}, so that it got the mapping as one value)"
    )


def _plain(model: torch.nn.Module) -> torch.nn.Module:
    while isinstance(model, WRAPPERS):
        model = model.module
    return model


class Loop:
    """One configuration's steps."""

    def __init__(self, sharded: Sharded, batch: tuple[Any, ...], job: dict[str, Any]) -> None:
        self.sharded, self.job = sharded, job
        self.batch, self.named = arguments(sharded.model, batch)
        self.hint = unnamed(sharded.model, batch) if self.batch else ""
        """What is said of the batch where the model does not get along with it."""
        with sharded.ground.making_optimizer():
            made = optimizer(sharded.model, job.get("optimizer", "adamw"))
        self.optimizer = sharded.ground.stepping(made)
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
        wrong = ""
        if not isinstance(loss, torch.Tensor):
            whole = getattr(loss, "loss", None) is not None or (isinstance(loss, Mapping) and "loss" in loss)
            advice = "wrap it in a module that returns " + ("its .loss" if whole else "the loss") + " alone"
            wrong = f"{named(loss)} and not a scalar loss: {advice}"
        elif loss.numel() != 1:
            wrong = f"a tensor of shape {tuple(loss.shape)} and not a scalar loss"
        elif not loss.is_floating_point():
            wrong = (
                f"a scalar of {str(loss.dtype).removeprefix('torch.')}, and a loss is a floating-point number"
            )
        elif not loss.requires_grad:
            raise Refused(
                "loss", "the loss that the model returned depends on no parameter that trains", self._place()
            )
        if wrong:
            raise Refused("loss", f"the model returned {wrong}", self._place())
        return loss

    def _place(self) -> str:
        return place_of_function(_plain(self.sharded.model).forward)
