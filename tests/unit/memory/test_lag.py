"""Blocks that other streams used, on a GPU that is behind the host: who gives them back, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import EventList, read
from fsdp_doctor.memory.lag import LAUNCHES, Lag
from fsdp_doctor.memory.simulate import simulate

MIB = 1 << 20
COMPUTATION, GATHERS, REDUCES = range(3)
SLOW = Lag(LAUNCHES, reduces=True)


def kept(made: written.Events, folder: Path) -> EventList:
    made.write(str(folder / "events.bin"))
    return read(folder / "events.bin", made.header())


def used(e: written.Events, *streams: int, size: int = 30) -> int:
    """A block of the stream of gathers that others used, given back; the row of its freeing."""
    block = e.allocate(size * MIB, GATHERS, "aten::cat", 0)
    for stream in streams:
        e.row(written.USED, block, 0, stream, 0, 0)
    e.free(block)
    return len(e)


def waited(e: written.Events, upto: int, stream: int) -> None:
    e.row(written.WAITED, -1, upto, stream, 0, 0)


def held(e: written.Events, folder: Path, lag: Lag) -> int:
    return simulate(kept(e, folder), lag=lag).reserved_peak // MIB


def test_who_waits_for_a_gather_has_not_waited_for_the_reduction(tmp_path: Path) -> None:
    e = written.Events()
    for _ in range(3):
        waited(e, used(e, REDUCES), COMPUTATION)
    events = kept(e, tmp_path)
    assert simulate(events, lag=SLOW).reserved_peak == 90 * MIB
    assert simulate(events).reserved_peak == 30 * MIB


def test_who_waits_for_the_reduction_has(tmp_path: Path) -> None:
    e = written.Events()
    for stream in (REDUCES, -1, REDUCES):
        waited(e, used(e, REDUCES), stream)
    assert held(e, tmp_path, SLOW) == 30


def test_computation_and_gathers_follow_each_other(tmp_path: Path) -> None:
    e = written.Events()
    for _ in range(3):
        waited(e, used(e, COMPUTATION), GATHERS)
    assert held(e, tmp_path, SLOW) == 30


@pytest.mark.parametrize(("after", "blocks"), [(True, 1), (False, 2)])
def test_the_end_of_backward_waits_for_reductions(tmp_path: Path, after: bool, blocks: int) -> None:
    """An event from after it speaks for them; one from before does not, however late it is waited for."""
    e = written.Events()
    before = used(e, REDUCES)
    e.mark("after backward")
    behind = len(e) + 1
    waited(e, behind if after else before, COMPUTATION)
    used(e, REDUCES)
    assert held(e, tmp_path, SLOW) == 30 * blocks


def test_a_full_queue_behind_the_end_of_backward_waits_for_reductions_too(tmp_path: Path) -> None:
    for launches, blocks in ((LAUNCHES // 2, 2), (LAUNCHES + 1, 1)):
        e = written.Events()
        used(e, REDUCES)
        e.mark("after backward")
        for _ in range(launches):
            e.free(e.allocate(512, COMPUTATION, "aten::add", 0))
        used(e, REDUCES)
        assert held(e, tmp_path, SLOW) == 30 * blocks + 2


def test_a_block_waits_for_all_its_users(tmp_path: Path) -> None:
    e = written.Events()
    waited(e, used(e, COMPUTATION, REDUCES), COMPUTATION)
    at = used(e, COMPUTATION)
    waited(e, at, COMPUTATION)
    used(e, COMPUTATION)
    assert held(e, tmp_path, SLOW) == 60


def test_each_stream_has_its_own_order(tmp_path: Path) -> None:
    """A reduction that lasts keeps none of what only computation used."""
    e = written.Events()
    used(e, REDUCES, size=40)
    for _ in range(3):
        waited(e, used(e, COMPUTATION), COMPUTATION)
    assert held(e, tmp_path, SLOW) == 70


@pytest.mark.parametrize(("lag", "blocks"), [(0, 1), (2, 1), (3, 2), (8, 4)])
def test_a_lag_counts_launches(tmp_path: Path, lag: int, blocks: int) -> None:
    e = written.Events()
    for _ in range(4):
        used(e, COMPUTATION)
        e.free(e.allocate(512, COMPUTATION, "aten::add", 0))
    assert held(e, tmp_path, Lag(lag)) == 30 * blocks + 2
