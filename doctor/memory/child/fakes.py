"""Fake tensors whose commonest operators take a short way: two thirds of a replay's operators are views.

Torch's own way looks each call up in a cache by a key over all that the arguments are, and to make the key
takes longer than a view or a product does. Shapes come from the same C++ code either way. What is not plainly
one of those operators, or fails, takes torch's way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config  # FakeTensorMode asks for it: imported here, once for all forks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

aten = torch.ops.aten
PLAIN = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten.t.default,
        aten.transpose.int,
        aten.detach.default,
        aten.as_strided.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.alias.default,
        aten.mm.default,
    )
)
"""Operators whose one result is as their arguments are: its sizes and strides follow from theirs in C++."""
_in_place: dict[Any, bool] = {}


class Fakes(FakeTensorMode):  # type: ignore[misc]
    """`FakeTensorMode` for tensors of one device without symbolic sizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator on fake tensors."""
        if func in PLAIN:
            if not kwargs and _plain(args):
                try:
                    with in_kernel_invocation_manager(self):
                        made = func(*args)
                except Exception:  # torch's way says what is wrong
                    return super().__torch_dispatch__(func, types, args, kwargs)
                return self.fake_tensor_converter.from_meta_and_device(self, made, args[0].fake_device)
        elif _writes_lists(func) and _alike(args):
            return None  # nothing is made, and there are no values
        return super().__torch_dispatch__(func, types, args, kwargs)


def _plain(args: Any) -> bool:
    """Whether the tensors among the arguments are fakes without values, of one device."""
    device = None
    for a in args:
        if isinstance(a, torch.Tensor):
            if type(a) is not FakeTensor or a.constant is not None or a.is_sparse or a.is_quantized:
                return False
            if device is None:
                device = a.fake_device
            elif a.fake_device != device:
                return False
    return device is not None and isinstance(args[0], torch.Tensor)


def _writes_lists(func: Any) -> bool:
    """Whether an operator works on lists in place."""
    found = _in_place.get(func)
    if found is None:
        name = getattr(getattr(func, "_schema", None), "name", "")
        found = _in_place[func] = name.startswith("aten::_foreach_") and name.endswith("_")
    return found


def _alike(args: Any) -> bool:
    """Whether all lists of tensors are fakes without values, of the same shapes."""
    first = args[0]
    for given in args:
        if isinstance(given, torch.Tensor):
            return False
        if isinstance(given, (list, tuple)) and given and isinstance(given[0], torch.Tensor):
            if len(given) != len(first):
                return False
            for a, b in zip(given, first, strict=True):
                if type(a) is not FakeTensor or a.constant is not None or a.shape != b.shape:
                    return False
    return True
