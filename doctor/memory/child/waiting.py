"""Loops that turn until values are as they should be: nothing here would ever end them.

A condition on tensors without values is taken for true. Where the same line asks it again and again and no
phase of training passes, it is a loop's own condition: at some time it is answered the other way.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import torch

MOST_TURNS = 1000
"""Times that one line is told the same. More than a model has experts in all of its layers, so that one of
its branches is not taken for a loop."""


class Waiting:
    """Answers to conditions, by who asks."""

    def __init__(self) -> None:
        self._asked: tuple[object, ...] = ()
        self._times = 0
        self.left: list[bool] = []
        """What the draws of a truncated normal distribution are still to be told, the next one last."""

    def condition(self, moment: object) -> bool:
        """The answer to whoever asks now; `moment` is the phase of the step."""
        if self.left:
            return self.left.pop()
        asked = (moment, *_stack())
        self._times = self._times + 1 if asked == self._asked else 1
        self._asked = asked
        if self._times <= MOST_TURNS:
            return True
        self._times = 0
        return False

    def follow_draws(self) -> None:
        """Torch draws a truncated normal distribution anew until no element is outside of its bounds."""
        real = getattr(torch.nn.init, "_no_grad_trunc_normal_", None)
        if real is None:
            return

        @functools.wraps(real)
        def drawn(tensor: Any, mean: float, std: float, a: float, b: float, *args: Any, **more: Any) -> Any:
            self.left = [False, *[True] * draws(tensor.numel(), mean, std, a, b)]
            try:
                return real(tensor, mean, std, a, b, *args, **more)
            finally:
                self.left = []

        torch.nn.init._no_grad_trunc_normal_ = drawn


def draws(elements: int, mean: float, std: float, a: float, b: float) -> int:
    """How many draws are expected to leave some of the elements to be drawn anew.

    torch draws from the normal distribution where [a, b] holds more than 0.3 of it, else evenly from [a, b],
    of which it keeps as many as the density allows.
    """
    kept = (math.erf((b - mean) / (std * math.sqrt(2))) - math.erf((a - mean) / (std * math.sqrt(2)))) / 2
    if kept <= 0.3:
        highest = math.exp(-0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2)
        kept *= std * math.sqrt(2 * math.pi) / ((b - a) * highest) if b > a and highest else 0.0
    times, rest = 0, elements * (1.0 - kept)
    while rest >= 0.5 and times < MOST_TURNS:
        times, rest = times + 1, rest * (1.0 - kept)
    return times


def _stack() -> tuple[object, ...]:
    frame: Any = sys._getframe(2)
    found: list[object] = []
    while frame:
        found += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return tuple(found)
