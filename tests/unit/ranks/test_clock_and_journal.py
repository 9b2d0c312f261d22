"""Offsets from stamps; stages and what they say of a rank that falls silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_doctor.ranks.clock import Ping, offset
from fsdp_doctor.ranks.journal import Journal, Trace


def ping(ahead: float, there: float, back: float, at: float = 1000.0) -> Ping:
    """An exchange of a rank whose clock is ahead by so much, with these ways."""
    heard = at + there
    return Ping(at + ahead, heard, heard + 0.001, heard + 0.001 + back + ahead)


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=8))
def test_the_error_is_half_the_quickest_round_trip(ahead: float, ways: list[tuple[float, float]]) -> None:
    found = offset(ping(ahead, there, back) for there, back in ways)
    quickest = min(there + back for there, back in ways)
    assert found is not None
    assert abs(found - ahead) <= quickest / 2 + 1e-6


def test_a_clock_that_jumped_is_left_out() -> None:
    assert offset([]) is None
    assert offset([Ping(100.0, 50.0, 50.0, 90.0)]) is None
    assert offset([Ping(100.0, 50.0, 50.0, 90.0), ping(2.0, 0.01, 0.01)]) == pytest.approx(2.0)


def test_the_journal_keeps_the_newest_stage_and_a_file_all(tmp_path: Path) -> None:
    journal = Journal(3, tmp_path)
    assert journal.stage[0] == "start"
    journal.mark("waiting for NVML")
    journal.mark("judging")
    assert journal.stage[0] == "judging"
    lines = (tmp_path / "rank-3.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["waiting for NVML", "judging"]


def test_a_folder_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    Journal(0, tmp_path / "gone").mark("judging")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "on node-b: still in 'import torch' after 12 s"),
        ({"heard": 100.0}, "on node-b: no sign of life for 10 s; its last stage was 'import torch'"),
        ({"closed": 109.0}, "on node-b: its process ended during 'import torch'"),
        ({"problem": "its report cannot be read: x"}, "on node-b: its report cannot be read: x"),
    ],
)
def test_remarks(change: dict[str, object], words: str) -> None:
    values: dict[str, object] = {"host": "node-b", "address": "10.0.0.2", "connected": 90.0, "heard": 110.0}
    trace = Trace(**(values | {"stage": "import torch", "stage_since": 98.0} | change))  # type: ignore[arg-type]
    assert trace.remark(110.0).startswith(words)


def test_a_stage_is_cut() -> None:
    trace = Trace("h", "a", 0.0, 0.0)
    trace.note("x" * 10_000, -5.0, 3.0)
    assert len(trace.stage) < 200 and trace.stage_since == 3.0
