"""Order statistics against known tables and against brute force; bandwidths against nccl-tests' formulas."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_doctor.probe.stats import (
    algbw,
    bus_factor,
    busbw,
    enough,
    finite,
    median_interval,
    median_ranks,
    percentile,
    repetitions,
    slowest,
    variation,
)

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=80)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1), (0.01, 1), (0.5, 5), (0.51, 6), (0.9, 9), (0.91, 10), (0.99, 10), (1.0, 10)],
)
def test_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile([10, 3, 1, 2, 4, 5, 9, 6, 7, 8], share) == expected


@given(TIMES, st.floats(0, 1))
def test_percentile_is_a_measured_value_that_enough_values_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9


@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (50, (18, 33)), (100, (40, 61))]
)
def test_ranks_of_the_median_interval(count: int, ranks: tuple[int, int]) -> None:
    assert median_ranks(count) == ranks


def covered(count: int, low: int, high: int) -> float:
    """Probability that the median lies between the ordered values low and high."""
    return sum(math.comb(count, k) for k in range(low, high)) / 2**count


@pytest.mark.parametrize("count", range(6, 400, 7))
def test_the_interval_covers_95_per_cent_and_no_narrower_one_does(count: int) -> None:
    low, high = median_ranks(count)
    assert covered(count, low, high) >= 0.95
    assert covered(count, low + 1, high - 1) < 0.95


@pytest.mark.parametrize("count", [1000, 1001, 5000])
def test_the_approximation_for_many_values_meets_the_exact_one(count: int) -> None:
    low, high = median_ranks(count)
    assert 0.945 <= covered(count, low, high) <= 0.96


@given(TIMES)
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high


def test_stop_rule_wants_ten_values_and_two_per_cent() -> None:
    rng = random.Random(1)
    close = [1 + rng.gauss(0, 0.005) for _ in range(20)]
    wide = [1 + rng.gauss(0, 0.2) for _ in range(20)]
    assert enough(close) and not enough(close[:9]) and not enough(wide)


@pytest.mark.parametrize(
    ("spread", "difference", "runs"), [(0.02, 0.05, 1), (0.10, 0.05, 25), (0.10, 0.02, 151), (0.01, 0.5, 1)]
)
def test_repetitions_that_resolve_a_difference(spread: float, difference: float, runs: int) -> None:
    assert repetitions(spread, difference) == runs


def test_a_collective_ends_with_its_slowest_rank() -> None:
    assert slowest([[1.0, 2.0, 3.0], [2.0, 1.0, 1.0], []]) == [2.0, 2.0, 3.0]


def test_what_no_clock_can_measure_is_left_out() -> None:
    assert finite([1.0, 0.0, -1.0, math.nan, math.inf, 1e300, 5e-324]) == [1.0]


def test_variation() -> None:
    assert variation([1.0]) == 0.0
    assert variation([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2)


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_gather", 8, 7 / 8),
        ("reduce_scatter", 4, 3 / 4),
        ("all_to_all", 2, 1 / 2),
        ("all_reduce", 8, 14 / 8),
        ("broadcast", 8, 1.0),
        ("all_reduce", 1, 0.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(op: str, ranks: int, factor: float) -> None:
    assert bus_factor(op, ranks) == pytest.approx(factor)
    assert busbw(op, 10**9, 0.01, ranks) == pytest.approx(100 * factor)
    assert algbw(10**9, 0.01) == pytest.approx(100)


def test_a_published_all_reduce() -> None:
    """16 GiB in 62.33 ms over 8 GPUs are 275.6 GB/s algbw and 482.3 GB/s busbw."""
    assert busbw("all_reduce", 16 << 30, 0.06233, 8) == pytest.approx(482.3, rel=1e-3)
