"""Curves through measured points."""

from __future__ import annotations

import pytest

from fsdp_doctor.probe.curve import Curve, Line, curve

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LINE = Line("all_gather", 8, 50e-6, 360.0)
SIZES = (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)


def measured() -> Curve:
    made = curve("all_gather", 8, [(s, LINE.seconds(s)) for s in SIZES])
    assert made is not None
    return made


def test_latency_bandwidth_and_half_size() -> None:
    c = measured()
    assert c.latency == pytest.approx(50e-6, rel=0.01)
    assert 340 < c.bandwidth < 360
    half = c.half_size
    assert half is not None and 15 * MIB < half < 25 * MIB


@pytest.mark.parametrize("size", [100 * KIB, 5 * MIB, 33 * MIB, 500 * MIB, 2 * GIB])
def test_between_and_above_the_points_it_stays_near_the_truth(size: int) -> None:
    assert measured().seconds(size) == pytest.approx(LINE.seconds(size), rel=0.25)


def test_at_the_points_it_is_exact_and_below_them_it_is_the_latency() -> None:
    c = measured()
    for size, seconds in c.points:
        assert c.seconds(size) == pytest.approx(seconds)
    assert c.seconds(1) == c.points[0][1]


def test_it_never_falls_with_size() -> None:
    c = measured()
    times = [c.seconds(s) for s in range(KIB, 2 * GIB, 37 * MIB)]
    assert times == sorted(times)


def test_the_fastest_of_repeated_points_counts_and_rubbish_does_not() -> None:
    c = curve("all_gather", 8, [(MIB, 2.0), (MIB, 1.0), (0, 1.0), (GIB, float("nan"))])
    assert c is not None and c.points == ((MIB, 1.0),)
    assert curve("all_gather", 8, []) is None


def test_without_small_sizes_there_is_no_latency() -> None:
    c = curve("all_gather", 8, [(MIB, 1.0)])
    assert c is not None and c.latency is None and c.half_size is None
