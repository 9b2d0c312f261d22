"""What this process uses of a GPU among others' processes."""

from __future__ import annotations

import pytest

from fsdp_doctor.memory.child.device_memory import of, own, used

MINE = "GPU-1234"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {MINE: {7: 100}}, 100),
        ({MINE: {5: 40}}, {MINE: {5: 50, 7: 100, 9: 10}}, 100),
        ({MINE: {5: 40}}, {MINE: {5: 50, 4100: 90}}, 90),  # in a container: the number is the host's
        ({MINE: {5: 40}}, {MINE: {5: 50, 4100: 90, 4200: 80}}, None),
        ({MINE: {7: 40}}, {MINE: {7: 50}}, None),  # another process that has this one's number on the host
        ({}, {"GPU-other": {7: 100}}, None),
        ({}, {}, None),
    ],
    ids=["alone", "by number", "the new one", "several new ones", "not ours", "another GPU", "no NVML"],
)
def test_own(before: dict[str, dict[int, int]], now: dict[str, dict[int, int]], expected: int | None) -> None:
    assert own(before, now, "1234", 7) == expected


def test_names_with_and_without_their_prefix() -> None:
    assert of({MINE: 3}, "1234") == of({"1234": 3}, MINE) == 3
    assert of({MINE: 3}, "") is None


def test_no_driver_is_no_error() -> None:
    assert isinstance(used(), dict)
