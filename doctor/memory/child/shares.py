"""How full a mask is that follows from a choice among experts: enough for top-k routing.

Carried along is 'this index was chosen among E' and 'this mask is 1/E full'. The tokens of one choice are a
fixed number: what the busiest expert gets more the others get less.
"""

from __future__ import annotations

from typing import Any

import torch

PASSED = ("_to_copy", "clone", "detach", "any", "gt", "ne", "sum")
COUNTED = ("any", "sum")
"""What reduces a mask: the share of what is not zero grows with the elements that are taken together."""
EXPERTS = 4096
"""Experts up to which those that are met have numbers."""
UNKNOWN = 0.5
"""Share of a mask of which nothing is known."""


class Choice:
    """One choice of `each` different ones among `experts`, and how many of its masks were asked for."""

    def __init__(self, experts: int, each: int = 1) -> None:
        self.experts, self._asked = max(1, int(experts)), 0
        self._most = self.experts / max(1, int(each))
        """Times its share where every token chooses it: none does so twice."""

    def factor(self, imbalance: float) -> float:
        """Times the balanced share that the next expert gets.

        The last one is the busiest: what the others keep for backward is there by then.
        """
        self._asked += 1
        busiest = min(imbalance, self._most)
        if self.experts == 1 or self._asked % self.experts == 0:
            return busiest
        return (self.experts - busiest) / (self.experts - 1)


def follow(func: Any, args: Any, out: Any) -> None:
    """Give what an operator made the share that follows from its inputs."""
    name = func._schema.name.partition("::")[2]
    if name in ("topk", "sort") and args:
        dim = args[2] if len(args) > 2 and name == "topk" else -1
        out[1]._choice = Choice(args[0].shape[dim], args[1] if name == "topk" else 1)
    elif name in ("argmax", "argmin") and isinstance(out, torch.Tensor):
        among = args[0].shape[args[1]] if len(args) > 1 and args[1] is not None else args[0].numel()
        out._choice = Choice(among)
    elif name in ("eq", "scatter", "scatter_") and isinstance(out, torch.Tensor):
        sources = args[:2] if name == "eq" else args[2:3]
        choice = next((c for c in (getattr(s, "_choice", None) for s in sources) if c is not None), None)
        if choice is not None:
            out._choice, out._share, out._whole = choice, 1 / choice.experts, True
            if name != "eq" and out.numel():  # a row of experts has as many marks as were chosen
                out._share = args[2].numel() / out.numel()
    elif isinstance(out, torch.Tensor) and args and isinstance(args[0], torch.Tensor):
        chosen = name == "index" and getattr(args[0], "_share", None) is not None  # the mask of an expert
        if not (func.is_view or name in PASSED or chosen):
            return
        choice, share = getattr(args[0], "_choice", None), getattr(args[0], "_share", None)
        if choice is not None:
            out._choice = choice
        if share is not None:
            grown = name in COUNTED and out.numel()
            out._share = min(1.0, share * args[0].numel() / out.numel()) if grown else share
            out._whole = getattr(args[0], "_whole", False) and out._share == share


def count(mask: Any, imbalance: float) -> int:
    """Elements of a mask that are taken to be set."""
    share, choice = getattr(mask, "_share", UNKNOWN), getattr(mask, "_choice", None)
    elements = int(mask.numel())
    if choice is not None and getattr(mask, "_whole", False):
        share *= choice.factor(imbalance)
    return min(elements, max(1, int(elements * share)))


def even(n: int, experts: int, bins: int) -> torch.Tensor:
    """How often each bin is met by `n` values that are spread evenly over the first `experts`."""
    with torch._C._DisableTorchDispatch():
        place = torch.arange(bins)
        return torch.where(place < experts, n // experts + (place < n % experts), 0)
