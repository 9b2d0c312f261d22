"""What a change costs, in words: compute that communication hides is not a slower step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_doctor.memory.advice.advise import order
from fsdp_doctor.memory.advice.changes import Change
from fsdp_doctor.memory.advice.cost import Work, size, slowdown, words
from fsdp_doctor.subjects.memory_advice import MeasuredChange


def step(forwards: float, between: float) -> Work:
    return Work(forwards, forwards * 1e12, 1e12, 0.0, between, 0.0, 0.0, 3e11)


@pytest.mark.parametrize(("between", "hidden"), [(9e11, True), (1e9, False)])
def test_compute_behind_communication_says_so(between: float, hidden: bool) -> None:
    before, after = step(3, between), step(4, between)
    assert slowdown(before, after) == pytest.approx(0.0 if hidden else 1 / 3)
    said = words(before, after)
    assert said == "+33% compute" + (" hidden behind communication" if hidden else "")


def test_sizes_below_a_gibibyte_are_not_rounded_away() -> None:
    assert words(step(3, 5e9), step(3, 5e9 - (9 << 20))) == "no more compute or communication"
    assert words(step(3, 5e9), step(3, 5e9 - (90 << 20))) == "-90.0 MiB sent per rank and step"
    assert (size(3 << 29), size(5 << 20)) == ("1.50 GiB", "5.0 MiB")


def test_more_gpus_come_after_what_needs_none() -> None:
    def helps(words: str, saves: int, slower: float, ranks: int = 1) -> tuple[Change, MeasuredChange]:
        row = MeasuredChange(words, "", 0, saves << 30, 0, None, slower, "")
        return Change(words, "", ranks=ranks), row

    found = [
        helps("twice the ranks", 9, 0.0, 2),
        helps("on the host", 6, 2.0),
        helps("checkpoint", 5, 0.3),
        helps("fused", 1, 0.0),
    ]
    names = [change.words for change, _ in sorted(found, key=order)]
    assert names == ["fused", "checkpoint", "on the host", "twice the ranks"]


def test_nodes_without_nvlink_are_no_faster_between_them_than_inside() -> None:
    inside = Work(3, 1.0, 1e12, 9e11, 0.0, 0.0, 0.0, 18e9)
    assert replace(inside, inside=0.0, between=9e11).moving == inside.moving
