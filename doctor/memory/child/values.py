"""Values of small tensors, and assumptions where there are none.

Integer and boolean tensors that follow from the batch alone (ids, masks, positions) are computed for real
beside their fakes, so that `.item()`, `if mask.all()` and `x[mask]` go the way they would go. What follows
from activations (a router's choice) is assumed: balanced, and every assumption is listed with its place.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from .tracker import Tracker

aten = torch.ops.aten
MOST_INTEGERS, MOST_FLOATS = 1 << 24, 1 << 17
"""Elements up to which values are followed."""
UNSET = ("empty", "new_empty")
OWN = __file__.rsplit("/", 1)[0]


class Assumed:
    """Values that were assumed, by place and operator."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], int] = {}
        self.imbalance = 1.0
        """Times the balanced share of tokens that the busiest expert gets."""

    def note(self, operator: str, what: str) -> None:
        """Remember one."""
        key = (where(), f"{operator}: {what}")
        self._found[key] = self._found.get(key, 0) + 1

    def listed(self) -> list[dict[str, object]]:
        """All, in the order of their first use."""
        return [{"place": place, "what": what, "times": n} for (place, what), n in self._found.items()]


@dataclass
class Answer:
    """The result of an operator that is not run."""

    value: Any


@dataclass
class Arguments:
    """The arguments to run it with."""

    args: Any
    kwargs: Any


def where() -> str:
    """File and line of the innermost frame that is neither torch's nor ours."""
    frame: Any = sys._getframe(1)
    while frame:
        name = frame.f_code.co_filename
        if "/torch/" not in name and not name.startswith((OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


# ------------------------------------------------------------------------------------------------ real values
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


def _worth(out: Any) -> bool:
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
    if made and all(_worth(o) for o in made) and not schema.name.partition("::")[2].startswith(UNSET):
        real = _computed(func, args, kwargs)
        if real is not None:
            if written:
                return  # changed in place, like the fake
            for fake, value in zip(made, real if isinstance(real, (tuple, list)) else (real,)):  # noqa: B905
                fake._doctor_value = value
            return
    for tensor in written:
        if getattr(tensor, "_doctor_value", None) is not None:
            tensor._doctor_value = None
    if isinstance(out, (torch.Tensor, tuple, list)):
        _density(func, args, out)


def _written(schema: Any, args: Any) -> list[Any]:
    """The tensors that an operator changes in place."""
    found: list[Any] = []
    for argument, value in zip(schema.arguments, args):  # noqa: B905
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += value if isinstance(value, (list, tuple)) else [value]
    return [t for t in found if isinstance(t, torch.Tensor)]


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
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


# ------------------------------------------------------------------------------------------- assumed values
def _density(func: Any, args: Any, out: Any) -> None:
    """Carry along 'this index has E values' and 'this mask is 1/E full': enough for top-k routing."""
    name = func._schema.name.partition("::")[2]
    if name in ("topk", "sort") and args:
        dim = args[2] if len(args) > 2 and name == "topk" else -1
        out[1]._domain = args[0].shape[dim]
    elif name in ("argmax", "argmin") and isinstance(out, torch.Tensor):
        out._domain = args[0].shape[args[1]] if len(args) > 1 and args[1] is not None else args[0].numel()
    elif name in ("eq", "scatter", "scatter_") and isinstance(out, torch.Tensor):
        source = args[0] if name == "eq" else args[2]
        domain = getattr(source, "_domain", None)
        if domain is None and name == "eq":
            domain = getattr(args[1], "_domain", None)
        if domain:
            out._density = 1 / domain
    elif isinstance(out, torch.Tensor) and args and isinstance(args[0], torch.Tensor):
        passes = func.is_view or name in ("_to_copy", "clone", "detach", "any", "gt", "ne")
        for key in ("_domain", "_density"):
            value = getattr(args[0], key, None)
            if value is not None and passes:
                if name == "any" and key == "_density" and out.numel():
                    value = min(1.0, value * args[0].numel() / out.numel())
                setattr(out, key, value)


def intercept(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | Arguments | None:
    """The answer to an operator whose result depends on values; None for every other."""
    handler = HANDLERS.get(func)
    return None if handler is None else handler(tracker, func, args, kwargs)


def _scalar(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
    tensor = args[0]
    known = shadow(tensor)
    if known is not None and known.numel() == 1:
        with torch._C._DisableTorchDispatch():
            return Answer(known.item())
    if _inside("grad_scaler.py"):
        return Answer(0.0)  # no infinity was found: a step is never skipped
    value: object = True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1
    tracker.assumed.note(".item()", f"{value} of {str(tensor.dtype).replace('torch.', '')}")
    return Answer(value)


def _count(tracker: Tracker, mask: Any) -> int:
    share = float(getattr(mask, "_density", 0.5))
    elements = int(mask.numel())
    return min(elements, max(1, int(elements * share * (tracker.assumed.imbalance if share < 0.5 else 1))))


def _nonzero(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer:
    mask, known = args[0], shadow(args[0])
    if known is not None:
        with torch._C._DisableTorchDispatch():
            real = known.nonzero()
        out = torch.empty(real.shape, dtype=torch.long)
        out._doctor_value = real
    else:
        n = _count(tracker, mask)
        tracker.assumed.note("nonzero", f"{n} of {mask.numel()} elements")
        out = torch.empty((n, mask.dim()), dtype=torch.long)
    tracker.watch(out.untyped_storage(), "aten::nonzero")
    return Answer(out)


def _index(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Arguments | None:
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return None
    indices: list[Any] = []
    for i in args[1]:
        if i is None or i.dtype not in (torch.bool, torch.uint8):
            indices.append(i)
            continue
        known = shadow(i)
        if known is not None:
            with torch._C._DisableTorchDispatch():
                n = int(known.count_nonzero())
        else:
            n = _count(tracker, i)
            tracker.assumed.note("index by a mask", f"{n} of {i.numel()} elements")
        for _ in range(i.dim()):
            indices.append(torch.empty(n, dtype=torch.long))
            tracker.watch(indices[-1].untyped_storage(), "aten::nonzero")
    return Arguments((args[0], indices, *args[2:]), kwargs)


def _masked(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer:
    """masked_select: as many elements as the mask has."""
    source, mask = args[0], args[1]
    known = shadow(mask)
    if known is not None:
        with torch._C._DisableTorchDispatch():
            n = int(known.expand(torch.broadcast_shapes(source.shape, mask.shape)).count_nonzero())
    else:
        n = _count(tracker, mask) * max(1, source.numel() // max(1, mask.numel()))
        tracker.assumed.note("masked_select", f"{n} of {source.numel()} elements")
    out = source.new_empty(n)
    tracker.watch(out.untyped_storage(), "aten::masked_select")
    return Answer(out)


def rescued(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
    """The result of an operator without a shape-only form, where the values of all its inputs are known."""
    real = _computed(func, args, kwargs)
    if real is None or real == () or not all(isinstance(r, torch.Tensor) for r in _listed(real)):
        return None
    made = []
    for value in _listed(real):
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        fake._doctor_value = value
        tracker.watch(fake.untyped_storage(), func._schema.name)
        made.append(fake)
    return Answer(tuple(made) if isinstance(real, (tuple, list)) else made[0])


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _inside(file: str) -> bool:
    frame: Any = sys._getframe(2)
    for _ in range(14):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


HANDLERS: dict[Any, Any] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked,
    aten._local_scalar_dense.default: _scalar,
    aten.index.Tensor: _index,
    aten.index_put.default: _index,
    aten.index_put_.default: _index,
    aten._index_put_impl_.default: _index,
}
