"""How long a collective takes by its size: measured points, and straight lines between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from fsdp_doctor.probe.stats import bus_factor, busbw

SMALL = 64 << 10
"""Bytes up to which a collective's time is its latency."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Median seconds of one collective by bytes, ascending. At least one point."""

    op: str
    ranks: int
    points: tuple[tuple[int, float], ...]

    @property
    def latency(self) -> float | None:
        """Seconds at the largest size of at most 64 KiB; None where none was measured."""
        small = [s for b, s in self.points if b <= SMALL]
        return small[-1] if small else None

    @property
    def bandwidth(self) -> float:
        """GB/s (busbw) at large sizes: the median of the two largest."""
        return statistics.median(busbw(self.op, b, s, self.ranks) for b, s in self.points[-2:])

    @property
    def half_size(self) -> float | None:
        """Bytes at which half of `bandwidth` is reached; None if the smallest size is already above it."""
        goal = self.bandwidth / 2
        rates = [(b, busbw(self.op, b, s, self.ranks)) for b, s in self.points]
        for (low, slow), (high, fast) in pairwise(rates):
            if slow < goal <= fast:
                share = (math.log(goal) - math.log(slow)) / (math.log(fast) - math.log(slow))
                return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        return None

    def seconds(self, size: float) -> float:
        """Seconds for `size` bytes: log-log between points, the same bandwidth above, the same time below.

        One line through all sizes would be wrong by a third: the backend changes its protocol on the way.
        """
        first, last = self.points[0], self.points[-1]
        if size <= first[0]:
            return first[1]
        if size >= last[0]:
            return last[1] * size / last[0]
        for (low, fast), (high, slow) in pairwise(self.points):
            if size <= high:
                share = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
                return math.exp(math.log(fast) + share * (math.log(slow) - math.log(fast)))
        return last[1]


@dataclass(frozen=True, slots=True)
class Line:
    """An assumed collective: latency in seconds plus bytes on the busiest link over busbw in GB/s."""

    op: str
    ranks: int
    latency_seconds: float
    busbw_gbps: float

    def seconds(self, size: float) -> float:
        """Seconds for an array of `size` bytes."""
        return self.latency_seconds + bus_factor(self.op, self.ranks) * size / (self.busbw_gbps * 1e9)


def curve(op: str, ranks: int, points: Iterable[tuple[int, float]]) -> Curve | None:
    """The curve through positive points, the fastest of each size; None without any."""
    best: dict[int, float] = {}
    for size, seconds in points:
        if size > 0 and seconds > 0 and math.isfinite(seconds):
            best[size] = min(seconds, best.get(size, seconds))
    return Curve(op, ranks, tuple(sorted(best.items()))) if best else None
