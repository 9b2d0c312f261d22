"""What a model reckons out while it is built: rates per layer, tables of sizes, checks of its arguments.

The model is built on meta tensors, which have no values. Small tensors that follow from numbers alone are
computed beside them, so that `.item()`, `.tolist()` and `if` say what they say in the job.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from . import branches
from .known import computed, follow, shadow
from .values import Assumed

aten = torch.ops.aten
CHECKS = (aten.allclose.default, aten.equal.default)
MOST = 1 << 14
"""Elements of a tensor up to which it is computed."""


class Constants(TorchDispatchMode):  # type: ignore[misc]
    """The mode under which a model is built."""

    def __init__(self, assumed: Assumed) -> None:
        super().__init__()
        self._assumed = assumed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what asks for a value that is known; everything else runs on meta."""
        kwargs = kwargs or {}
        asks = func is aten._local_scalar_dense.default
        if asks or (func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu")):
            real = None if shadow(args[0]) is None else computed(func, args, kwargs)
            if real is not None and args[0].device.type == "meta":
                return real
        if func in CHECKS or (asks and args[0].dtype == torch.bool and args[0].device.type == "meta"):
            found = self._checked(func, args, kwargs)
            if found is not None:
                return found
        try:
            out = func(*args, **kwargs)
        except NotImplementedError:  # its result's shape depends on values
            real = computed(func, args, kwargs)
            if real is None:
                raise
            return tree_map_only(torch.Tensor, _beside, real)
        if _small(out):
            follow(func, args, kwargs, out)
        elif func._schema.is_mutable:
            forget(args)
        return out

    def _checked(self, func: Any, args: Any, kwargs: Any) -> bool | None:
        """The answer to a check: by values where these are known; else one with which nothing is raised."""
        known = computed(func, args, kwargs) if func in CHECKS else None
        if known is not None:
            return bool(known)
        calm = branches.unraised()
        if calm is None and func in CHECKS:
            calm = True
        if calm is not None:
            name = func._schema.name.partition("::")[2].replace("_local_scalar_dense", ".item()")
            self._assumed.note(name, str(calm))
        return calm


class Literals(TorchFunctionMode):  # type: ignore[misc]
    """Under the former: torch makes a tensor of literals on meta without asking what they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep the literals beside the tensor."""
        kwargs = kwargs or {}
        if func is torch.Tensor.numpy and args[0].is_meta and shadow(args[0]) is not None:
            return shadow(args[0]).numpy()
        out = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and _small(out) and shadow(out) is None:
            out._doctor_value = func(*args, **{**kwargs, "device": "cpu"}).detach()
        return out


def forget(tree: Any) -> None:
    """Drop the values of tensors that are changed by what is not computed, or that are needed no more."""
    for value in tree:
        if isinstance(value, (list, tuple)):
            forget(value)
        elif isinstance(value, torch.Tensor) and getattr(value, "_doctor_value", None) is not None:
            value._doctor_value = None


def _beside(real: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(real, device="meta")
    made._doctor_value = real
    return made


def _small(out: Any) -> bool:
    made = out if isinstance(out, (list, tuple)) else (out,)
    return all(type(t) is torch.Tensor and t.device.type == "meta" and t.numel() <= MOST for t in made)
