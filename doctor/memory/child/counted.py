"""Results of which values decide the size: different values, repeats, bins.

Where the values are known they are computed. Others are taken to differ all from each other, as ids and
coordinates do, or to be as many as the experts of a choice; to be repeated once; to fit in the bins named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import shares
from .course import sort_space
from .known import MOST_INTEGERS, computed, shadow

if TYPE_CHECKING:
    from .tracker import Tracker

WORD = 8


def unique(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Any:
    """Different values, where each value is among them, and how often each comes (Unique.cu, UniqueCub.cu).

    The results keep the memory of as many as there are values.
    """
    said = _arguments(func, args, kwargs)
    given, dim, name = args[0], said.get("dim"), func._schema.name
    inverse, counts = bool(said.get("return_inverse")), bool(said.get("return_counts"))
    rows = int(given.numel() if dim is None else given.shape[dim])
    real = computed(func, args, kwargs)
    found = int(real[0].numel() if dim is None else real[0].shape[dim]) if real else rows
    if not real:
        choice = getattr(given, "_choice", None) if dim is None and "consecutive" not in name else None
        found = min(rows, choice.experts) if choice is not None else rows
        tracker.assumed.note(name.partition("::")[2].lstrip("_"), f"{found} different values of {rows}")
    of = (found,) if dim is None else (*given.shape[:dim], found, *given.shape[dim:][1:])
    whole = given.new_empty(of)
    where = given.new_empty(given.shape if dim is None else (rows,) if inverse else (0,), dtype=torch.long)
    if not inverse:
        where = given.new_empty(0, dtype=torch.long)
    times = given.new_empty((found,) if counts else (0,), dtype=torch.long)
    if real:
        whole._doctor_value, where._doctor_value, times._doctor_value = real
    elif counts and found <= MOST_INTEGERS:
        times._doctor_value = shares.even(rows, found, found)
    sorted_ = given.numel() * given.element_size() if "consecutive" not in name else 0
    tracker.during((sorted_, *(3 * (WORD * rows,) if inverse else ()), sort_space(rows)), name)
    tracker.watch(where.untyped_storage(), name)
    tracker.watch(whole.untyped_storage(), name, larger=given.numel() * given.element_size())
    tracker.watch(times.untyped_storage(), name, larger=WORD * rows if counts else None)
    return whole, where, times


def repeated(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Any:
    """repeat_interleave by a tensor of counts: as many as their sum; None where the caller names the sum."""
    counts = args[0]
    said = _arguments(func, args, kwargs).get("output_size")
    if said is not None:
        return None
    real = computed(func, args, kwargs)
    n = int(counts.numel()) if real is None else int(real.numel())
    if real is None:
        tracker.assumed.note("repeat_interleave", f"{n} counts of 1")
    out = counts.new_empty(n)
    if real is not None:
        out._doctor_value = real
    tracker.during((WORD * int(counts.numel()),), func._schema.name)  # the running sum: Repeat.cu
    tracker.watch(out.untyped_storage(), func._schema.name)
    return out


def bins(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Any:
    """bincount: how often each expert was chosen, by all the same; else the bins that are named.

    None where the values are known, or the number of bins is not.
    """
    said = _arguments(func, args, kwargs)
    given, weights, least = args[0], said.get("weights"), int(said.get("minlength") or 0)
    choice = getattr(given, "_choice", None)
    if shadow(given) is not None or (choice is None and not least):
        return None
    n = max(choice.experts if choice is not None else 0, least)
    met = choice.experts if choice is not None else n
    tracker.assumed.note("bincount", f"{int(given.numel())} values in {met} bins")
    kind = torch.long
    if weights is not None:
        kind = torch.float32 if weights.dtype == torch.float32 else torch.float64
    out = given.new_empty(n, dtype=kind)
    if weights is None:
        out._doctor_value = shares.even(int(given.numel()), met, n)
    tracker.watch(out.untyped_storage(), func._schema.name)
    return out


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The call's arguments by name, with the defaults of the schema."""
    listed = func._schema.arguments
    said = {a.name: a.default_value for a in listed if a.has_default_value()}
    return {**said, **{a.name: value for a, value in zip(listed, args)}, **kwargs}  # noqa: B905
