"""The model and the batch of a job, made by the user's functions."""

from __future__ import annotations

from typing import Any

import torch

from .loading import HfLoss, Refused, call, function, hf_batch
from .refusals import KIND, inspect
from .sharding import dtype


def model_of(job: dict[str, Any]) -> torch.nn.Module:
    """The model on meta tensors, whatever its size. Raises `Refused`."""
    spec, args = job["model"], job.get("model_args") or {}
    factory: Any = HfLoss(spec[3:]) if spec.startswith("hf:") else function(spec, "model")
    with torch.device("meta"):
        model = call(factory, args, "model")
    if not isinstance(model, torch.nn.Module):
        staged = type(model).__module__.startswith("torch.distributed.pipelining")
        raise Refused(
            KIND if staged else "model",
            f"--model {spec}: it returned a {type(model).__name__} and not a torch.nn.Module"
            + (": pipeline parallelism is not modelled, give the module of one stage" if staged else ""),
        )
    inspect(model)
    if job.get("dtype"):
        model = model.to(dtype(job["dtype"]))
    return model


def batch_function(job: dict[str, Any]) -> Any:
    """The function that makes a batch. Raises `Refused`."""
    spec = job.get("batch")
    if spec is None and job["model"].startswith("hf:"):
        return hf_batch
    if spec is None:
        raise Refused("batch", "--batch FILE.py:FUNC is needed: a function that makes one batch")
    return function(spec, "batch")


def batch_of(job: dict[str, Any], made_by: Any, device: str) -> tuple[Any, ...]:
    """One batch on a device. Raises `Refused`."""
    batch = call(made_by, job.get("batch_args") or {}, "batch", device)
    if batch is None:
        raise Refused("batch", "the batch function returned None and not a tuple of tensors")
    if not isinstance(batch, tuple):
        batch = tuple(batch) if isinstance(batch, list) else (batch,)
    return batch
