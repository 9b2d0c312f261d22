"""Calls of operators as texts: shapes, strides, dtypes and numbers, by which kernels are chosen.

A text names one way in which a kernel is called. It is compared as it stands; only the process that measures
turns the texts of a replay back into tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

MOST = 1000
"""Different calls that are noted."""
FORMATS = {str(f): f for f in (torch.contiguous_format, torch.channels_last, torch.preserve_format)}


class Unwritable(ValueError):
    """An argument that no text stands for."""


def signature(func: Any, args: Any, kwargs: Any, grads: bool = False) -> str:
    """The text of a call. `grads`: it matters which tensors require a gradient. Raises `Unwritable`."""
    said = {
        "operator": func._schema.name,
        "overload": func._overloadname,
        "args": [_written(a, grads) for a in args],
        "kwargs": {k: _written(v, grads) for k, v in sorted((kwargs or {}).items())},
    }
    return json.dumps(said, separators=(",", ":"), sort_keys=True)


def _written(value: Any, grads: bool) -> Any:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"tensor": [kind, list(value.shape), list(value.stride()), grads and value.requires_grad]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_written(v, grads) for v in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"format": str(value)}
    if isinstance(value, torch.device):
        return {"device": True}
    raise Unwritable(f"an argument of type {type(value).__name__}")


def read(text: str, device: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """The operator and arguments of a text, tensors on a device. Raises `ValueError`, `AttributeError`."""
    said = json.loads(text)
    space, _, name = said["operator"].partition("::")
    func = getattr(getattr(getattr(torch.ops, space), name), said["overload"] or "default")
    args = [_made(a, device) for a in said["args"]]
    return func, args, {k: _made(v, device) for k, v in said["kwargs"].items()}


def _made(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_made(v, device) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, said),) = value.items()
    if kind == "tensor":
        dtype, shape, stride, grad = said
        made = torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=device)
        made = made.normal_() if made.is_floating_point() else made.zero_()
        return made.requires_grad_(bool(grad)) if made.is_floating_point() else made
    if kind == "number":
        return float(said)
    if kind == "dtype":
        return getattr(torch, said)
    return FORMATS[said] if kind == "format" else torch.device(device)


class Calls:
    """The different calls of watched operators in a replay, and how often each was met."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._operators = frozenset(asked.get("operators") or ())
        self._own = frozenset(asked.get("own") or ())
        self.times: dict[str, int] = {}
        self.operators: dict[str, str] = {}
        self.unwritable: dict[str, str] = {}

    def watched(self, operator: str) -> bool:
        """Whether an operator is one of those that were asked for, or of a library other than torch."""
        if operator in self._operators:
            return True
        return bool(self._own) and operator.partition("::")[0] not in self._own

    def note(self, func: Any, args: Any, kwargs: Any, grads: bool = False) -> str | None:
        """The text of a call, counted; None for one that cannot be written."""
        operator = func._schema.name
        try:
            text = signature(func, args, kwargs, grads)
        except Unwritable as error:
            self.unwritable[operator] = str(error)
            return None
        if text in self.times or len(self.times) < MOST:
            self.times[text] = self.times.get(text, 0) + 1
            self.operators[text] = operator
        return text

    def listed(self, known: Iterable[str]) -> dict[str, Any]:
        """For the result: the calls, and the operators of which each call is among the known ones."""
        have = frozenset(known)
        missing = {self.operators[t] for t in self.times if t not in have} | set(self.unwritable)
        return {
            "calls": [
                {"operator": self.operators[t], "signature": t, "times": n} for t, n in self.times.items()
            ],
            "covered": sorted({o for o in self.operators.values() if o not in missing}),
            "unwritable": self.unwritable,
        }
