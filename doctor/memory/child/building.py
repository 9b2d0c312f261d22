"""The model and the batch of a job, made by the user's functions."""

from __future__ import annotations

import inspect as signatures
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import pretrained
from .constants import Constants, Literals, forget
from .loading import HfLoss, Refused, call, function
from .refusals import KIND, inspect, unwrapped
from .sharding import dtype
from .values import Assumed


def model_of(job: dict[str, Any], assumed: Assumed | None = None) -> torch.nn.Module:
    """The model on meta tensors, whatever its size; `assumed` learns what that rests on. Raises `Refused`."""
    spec, args = job["model"], job.get("model_args") or {}
    factory: Any = HfLoss(spec[3:]) if spec.startswith("hf:") else function(spec, "model")
    with torch.device("meta"), unwrapped(), Constants(assumed or Assumed()), Literals():
        model = call(factory, args, "model")
    if not isinstance(model, torch.nn.Module):
        staged = type(model).__module__.startswith("torch.distributed.pipelining")
        raise Refused(
            KIND if staged else "model",
            f"--model {spec}: it returned {named(model)} and not a torch.nn.Module"
            + (": pipeline parallelism is not modelled, give the module of one stage" if staged else ""),
            place_of_function(factory),
        )
    inspect(model)
    forget(model.buffers())
    if job.get("dtype"):
        model = model.to(dtype(job["dtype"]))
    return model


def batch_function(job: dict[str, Any]) -> Any:
    """The function that makes a batch. Raises `Refused`."""
    spec = job.get("batch")
    if spec is None and job["model"].startswith("hf:"):
        return pretrained.batch
    if spec is None:
        raise Refused("batch", "--batch FILE.py:FUNC is needed: a function that makes one batch")
    return function(spec, "batch")


def arguments_of(made_by: Any) -> dict[str, Any]:
    """Names of a batch function's arguments after the device, with their defaults where these are numbers."""
    try:
        parameters = list(signatures.signature(made_by).parameters.values())[1:]
    except (TypeError, ValueError):
        return {}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {p.name: p.default if isinstance(p.default, int) else None for p in named}


def batch_of(job: dict[str, Any], made_by: Any, device: str) -> tuple[Any, ...]:
    """One batch on a device. Raises `Refused`."""
    batch = call(made_by, job.get("batch_args") or {}, "batch", device)
    wrong, place = "", place_of_function(made_by)
    if batch is None:
        wrong = "None and not a tuple of tensors"
    elif isinstance(batch, (Iterator, torch.utils.data.DataLoader)):
        wrong = f"{named(batch)} and not one batch: return next(iter(loader))"
    elif isinstance(batch, str) or type(batch).__module__.partition(".")[0] == "numpy":
        wrong = f"{named(batch)} and not a tuple of tensors"
    if wrong:
        raise Refused("batch", f"the batch function returned {wrong}", place)
    if not isinstance(batch, tuple):
        batch = tuple(batch) if isinstance(batch, list) else (batch,)
    for name, tensor in _tensors(batch):
        if tensor.device.type != device:
            raise Refused(
                "batch",
                f"{name} of the batch is on {tensor.device}: make it on the device that the function gets",
                place,
            )
    return batch


def place_of_function(function: Any) -> str:
    """File and line of a function; "" where it has none."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def named(value: object) -> str:
    """What a value is, for a sentence."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _tensors(batch: tuple[Any, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for i, value in enumerate(batch):
        for name, one in value.items() if isinstance(value, Mapping) else ((f"value {i + 1}", value),):
            if isinstance(one, torch.Tensor):
                yield str(name), one
