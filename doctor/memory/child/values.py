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

from . import branches, counted, ctc, operand_types, shares, used
from .known import computed, follow, shadow, worth

if TYPE_CHECKING:
    from .tracker import Tracker

aten = torch.ops.aten
OWN = __file__.rsplit("/", 1)[0]


__all__ = ["Answer", "Arguments", "Assumed", "follow", "intercept", "rescued", "shadow", "where", "worth"]


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


def intercept(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | Arguments | None:
    """The answer to an operator whose result depends on values; None for every other."""
    check = operand_types.CHECKS.get(func)
    if check is not None:
        wrong = check(args)
        if wrong:
            tracker.failed_in = tracker.where.words()
            raise RuntimeError(wrong)
    handler = HANDLERS.get(func)
    if handler is None:
        return None
    answer: Answer | Arguments | None = handler(tracker, func, args, kwargs)
    if answer is not None and sized(handler):
        used.note(func._schema.name)
    return answer


def sized(handler: Any) -> bool:
    """Whether a handler decides about memory."""
    return handler not in (_scalar, _equal)


def _scalar(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
    tensor = args[0]
    known = shadow(tensor)
    if known is not None and known.numel() == 1:
        with torch._C._DisableTorchDispatch():
            return Answer(known.item())
    if branches.inside("grad_scaler.py"):
        return Answer(0.0)  # no infinity was found: a step is never skipped
    if tensor.dtype == torch.bool:
        calm = branches.unraised()
        value: object = tracker.waiting.condition(tracker.events.marks) if calm is None else calm
    else:
        value = 1.0 if tensor.is_floating_point() else 1
    tracker.assumed.note(".item()", f"{value} of {str(tensor.dtype).replace('torch.', '')}")
    return Answer(value)


def _count(tracker: Tracker, mask: Any) -> int:
    return shares.count(mask, tracker.assumed.imbalance)


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
        if n == mask.numel() and n <= shares.EXPERTS:  # every expert is met: each of them by its number
            with torch._C._DisableTorchDispatch():
                out._doctor_value = torch.ones(mask.shape).nonzero()
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
                chosen = known.nonzero().unbind(-1)
            n = len(chosen[0])
        else:
            n, chosen = _count(tracker, i), ()
            tracker.assumed.note("index by a mask", f"{n} of {i.numel()} elements")
        for d in range(i.dim()):
            indices.append(torch.empty(n, dtype=torch.long))
            if chosen:
                indices[-1]._doctor_value = chosen[d]
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
    tracker.during((8 * n * max(source.dim(), mask.dim()),), "aten::masked_select")  # as from nonzero
    return Answer(out)


def _ctc(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer:
    """ctc_loss: a loss per sequence, and what its backward needs: its size is the longest target's."""
    scores, targets, lengths = args[0], args[1], args[3]
    longest = ctc.longest(shadow(lengths) if isinstance(lengths, torch.Tensor) else lengths)
    if longest is None:
        longest = ctc.assumed(targets, lengths)
        tracker.assumed.note("ctc_loss", f"the longest target has {longest} elements")
    return Answer(ctc.forward(tracker, scores, longest))


def _ctc_backward(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer:
    return Answer(ctc.backward(tracker, args[1], args[6], bool(args[8]) if len(args) > 8 else False))


def _equal(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
    """torch.equal and allclose: what a check asks, or whether two tensors could be equal."""
    if func is aten.equal.default and args[0].shape != args[1].shape:
        return Answer(False)
    known = computed(func, args, kwargs)
    if known is not None:
        return Answer(known)
    calm = branches.unraised()
    tracker.assumed.note(func._schema.name.partition("::")[2], str(calm is not False))
    return Answer(calm is not False)


def _counted(results: Any) -> Any:
    """A handler that lets the operator run where there is nothing to assume."""

    def handler(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
        made = results(tracker, func, args, kwargs)
        return None if made is None else Answer(made)

    return handler


def rescued(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Answer | None:
    """The result of an operator without a shape-only form, where the values of all its inputs are known."""
    real = computed(func, args, kwargs)
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


HANDLERS: dict[Any, Any] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked,
    aten._local_scalar_dense.default: _scalar,
    aten.index.Tensor: _index,
    aten.index_put.default: _index,
    aten.index_put_.default: _index,
    aten._index_put_impl_.default: _index,
    aten.equal.default: _equal,
    aten.allclose.default: _equal,
    aten.bincount.default: _counted(counted.bins),
    aten.repeat_interleave.Tensor: _counted(counted.repeated),
    aten._unique2.default: _counted(counted.unique),
    aten.unique_dim.default: _counted(counted.unique),
    aten.unique_consecutive.default: _counted(counted.unique),
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten._ctc_loss_backward.default: _ctc_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
}
