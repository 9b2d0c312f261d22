from __future__ import annotations

from datetime import date
from itertools import pairwise

import pytest

from fsdp_doctor.tables.cuda_drivers import (
    TOOLKIT_DRIVERS,
    Fit,
    end_of_support,
    fit,
    is_consumer,
    newest_cuda,
)
from fsdp_doctor.tables.versions import at_least, parse


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("580.65.06", (13, 0), Fit.NATIVE),
        ("580.65.05", (13, 0), Fit.TOO_OLD),
        ("575.57.08", (13, 0), Fit.TOO_OLD),
        ("580.95.05", (13, 2), Fit.MINOR),
        ("535.183.06", (12, 4), Fit.MINOR),
        ("525.60.13", (12, 8), Fit.MINOR),
        ("525.60.12", (12, 0), Fit.TOO_OLD),
        ("450.80.02", (11, 8), Fit.MINOR),
        ("595.71.05", (11, 8), Fit.NATIVE),
        ("999.1", (13, 9), Fit.UNKNOWN),
        ("580.95.05", (14, 0), Fit.UNKNOWN),
        ("580.95.05", (10, 2), Fit.UNKNOWN),
    ],
)
def test_fit(driver: str, cuda: tuple[int, int], expected: Fit) -> None:
    assert fit(parse(driver) or (), cuda) is expected


def test_toolkits_and_drivers_rise_together() -> None:
    drivers = [parse(TOOLKIT_DRIVERS[c]) or () for c in sorted(TOOLKIT_DRIVERS)]
    assert all(at_least(b, a) for a, b in pairwise(drivers))


def test_newest_cuda() -> None:
    assert newest_cuda((535, 183, 6)) == (12, 2)
    assert newest_cuda((580, 95, 5)) == (13, 0)
    assert newest_cuda((100,)) is None


def test_end_of_support() -> None:
    assert end_of_support(535) == date(2026, 6, 30)
    assert end_of_support(560) is not None
    assert end_of_support(700) is None


@pytest.mark.parametrize(
    ("name", "brand", "consumer"),
    [
        ("NVIDIA GeForce RTX 4090", None, True),
        ("NVIDIA TITAN RTX", None, True),
        ("anything", 15, True),
        ("NVIDIA H100 80GB HBM3", 14, False),
        (None, None, False),
    ],
)
def test_is_consumer(name: str | None, brand: int | None, consumer: bool) -> None:
    assert is_consumer(name, brand) is consumer
