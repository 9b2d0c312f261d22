"""Order statistics of repeated timings and nccl-tests' bandwidths. Standard library only: workers load it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

LEVEL = 0.95
MIN_FOR_INTERVAL = 6
"""Fewer values have no 95 % interval of their median: even (minimum, maximum) covers it less often."""
MIN_TO_STOP = 10
HALF_WIDTH = 0.02
MIN_FOR_P99 = 299
"""0.99^n <= 0.05: with fewer values a bound of the 99th percentile cannot be claimed."""


def finite(values: Iterable[float]) -> list[float]:
    """The durations that a clock can have measured, from a nanosecond to a hundred days."""
    return [v for v in values if 1e-9 <= v <= 1e7]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(max(math.ceil(share * len(ordered)), 1), len(ordered)) - 1]


def median_ranks(count: int) -> tuple[int, int]:
    """1-based ranks of the ordered values between which the median lies with at least 95 % confidence.

    The narrowest symmetric pair by the exact binomial sum: 20 values -> 6 and 15, 50 -> 18 and 33. With
    fewer than `MIN_FOR_INTERVAL` values it is the first and the last, at less confidence.
    """
    tail, below, total = 0.0, 0, 2.0**-count if count < 1000 else 0.0
    if not total:
        below = int(count / 2 - 0.98 * math.sqrt(count))
        return max(below, 1), min(count + 1 - below, count)
    term = total
    while tail + term <= (1 - LEVEL) / 2:
        tail += term
        below += 1
        term *= (count - below + 1) / below
    low = max(below, 1)
    return low, count + 1 - low


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from the order of the values alone."""
    ordered = sorted(values)
    low, high = median_ranks(len(ordered))
    return ordered[low - 1], ordered[high - 1]


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for fewer than two values."""
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if len(values) > 1 and mean > 0 else 0.0


def repetitions(variation: float, difference: float) -> int:
    """How many repetitions resolve a relative difference of medians at 95 %."""
    return max(math.ceil((1.25 * 1.96 * variation / difference) ** 2), 1)


def enough(values: Sequence[float], half_width: float = HALF_WIDTH) -> bool:
    """Whether the median is known closely enough to stop: half the interval within `half_width` of it."""
    if len(values) < MIN_TO_STOP:
        return False
    low, high = median_interval(values)
    return (high - low) / 2 < half_width * statistics.median(values)


def slowest(series: Sequence[Sequence[float]]) -> list[float]:
    """Per iteration the longest time of any rank: a collective ends when its last rank has it."""
    kept = [s for s in series if s]
    return [max(column) for column in zip(*kept, strict=False)]


def algbw(size: int, seconds: float) -> float:
    """GB/s (10^9) of the whole array; its size is n times one rank's part for all-gather and the like."""
    return size / seconds / 1e9


def bus_factor(op: str, ranks: int) -> float:
    """Bytes that a ring puts on its busiest link per byte of the array (nccl-tests' factors)."""
    if ranks < 1:
        return 1.0
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 2 * (ranks - 1) / ranks if op == "all_reduce" else 1.0


def busbw(op: str, size: int, seconds: float, ranks: int) -> float:
    """`algbw` times the ring's factor: comparable between numbers of ranks and with a link's rate."""
    return algbw(size, seconds) * bus_factor(op, ranks)
