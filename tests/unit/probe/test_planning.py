"""Sizes from the command line, and plans."""

from __future__ import annotations

import pytest

from fsdp_doctor.probe.planning import GLOO, NCCL, Effort, SizeError, parse_size, parse_sizes, plan
from fsdp_doctor.probe.tournament import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64K:1M", (64 * KIB, 256 * KIB, MIB)),
        ("64K:100K", (64 * KIB, 100 * KIB)),
        ("1G", (GIB,)),
        ("1MiB, 64k,1m", (64 * KIB, MIB)),
        ("4096", (4096,)),
        ("1.5M", (3 * MIB // 2,)),
    ],
)
def test_sizes(text: str, expected: tuple[int, ...]) -> None:
    assert parse_sizes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0", "1T", "64K:", ":1G", "1G:64K", "9999999G", "1 2", "nan"]
)
def test_wrong_sizes_say_what_one_is(text: str) -> None:
    with pytest.raises(SizeError, match=r"size|larger"):
        parse_size(text) if ":" not in text else parse_sizes(text)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("backend", [NCCL, GLOO])
@pytest.mark.parametrize("effort", list(Effort))
def test_plans_divide_among_the_ranks(backend: str, ranks: int, effort: Effort) -> None:
    made = plan(backend, ranks, effort, units=(12_345_678,), seconds=10.0)
    assert all(s % (16 * ranks) == 0 for s in made.sizes)
    assert set(made.unit_sizes) <= set(made.sizes)
    assert made.deadline_seconds == 10.0 and made.timeout_seconds <= 5.0
    assert bool(made.pair_bytes) == (1 < ranks <= 16)
    assert bool(made.copy_bytes) == (backend == NCCL)


def test_pairs_are_tried_where_it_is_said() -> None:
    assert plan(GLOO, 64, pairs=True).pair_bytes
    assert not plan(GLOO, 4, pairs=False).pair_bytes
