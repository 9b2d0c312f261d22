"""Values of small tensors that follow from the batch alone: computed for real beside their fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import shares

MOST_INTEGERS, MOST_FLOATS = 1 << 24, 1 << 24
"""Elements up to which values are followed."""
UNSET = ("empty", "new_empty")
NEVER = frozenset((torch.ops.aten.isnan.default, torch.ops.aten.isinf.default))
"""Values without values are numbers: a check for others goes on as in a job that trains."""


def shadow(tensor: Any) -> Any:
    """The real tensor beside a fake one, if its values are known."""
    found = getattr(tensor, "_doctor_value", None)
    if found is None and isinstance(tensor, FakeTensor) and tensor.constant is not None:
        found = tensor.constant
    if found is None and type(tensor) is torch.Tensor and tensor.device.type == "cpu":
        found = tensor
    return found


def _known(tree: Any) -> Any:
    """The tree with real values in place of fakes. Raises `LookupError` where one is missing."""
    if isinstance(tree, torch.Tensor):
        found = shadow(tree)
        if found is None:
            raise LookupError
        return found
    if isinstance(tree, (list, tuple)):
        return type(tree)(_known(t) for t in tree) if not hasattr(tree, "_fields") else tree
    return tree


def worth(out: Any) -> bool:
    """Whether a tensor is small enough for its values to be followed."""
    if not isinstance(out, torch.Tensor):
        return False
    whole = out.dtype in INTEGERS
    return bool(out.numel() <= (MOST_INTEGERS if whole else MOST_FLOATS))


INTEGERS = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Compute the value of what an operator made or changed, where its inputs' values are known."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return
    written = _written(schema, args) if schema.is_mutable else []
    made = written or (
        [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, (tuple, list)) else []
    )
    if made and all(worth(o) for o in made) and not schema.name.partition("::")[2].startswith(UNSET):
        real = computed(func, args, kwargs)
        if real is not None:
            if written:
                return  # changed in place, like the fake
            for fake, value in zip(made, real if isinstance(real, (tuple, list)) else (real,)):  # noqa: B905
                fake._doctor_value = value
            return
    for tensor in written:
        if getattr(tensor, "_doctor_value", None) is not None:
            tensor._doctor_value = None
    if func in NEVER and isinstance(out, FakeTensor):
        with torch._C._DisableTorchDispatch():
            out._doctor_value = torch.zeros((), dtype=torch.bool).expand(out.shape)
        return
    if isinstance(out, (torch.Tensor, tuple, list)):
        shares.follow(func, args, out)


def _written(schema: Any, args: Any) -> list[Any]:
    """The tensors that an operator changes in place."""
    found: list[Any] = []
    for argument, value in zip(schema.arguments, args):  # noqa: B905
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += value if isinstance(value, (list, tuple)) else [value]
    return [t for t in found if isinstance(t, torch.Tensor)]


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """The operator on real values; None where one of them is not known or there is no CPU kernel."""
    try:
        values = _known(list(args))
        named = {k: _known(v) for k, v in kwargs.items()}
        if "device" in named:
            named["device"] = torch.device("cpu")
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            real = func(*values, **named)
        return () if real is None else real
    except Exception:
        return None
