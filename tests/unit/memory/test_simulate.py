"""Peaks by phase, what lives at them, and the two ways in which freed blocks become reusable."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import BrokenEvents, EventList, read
from fsdp_doctor.memory.host import PAGEABLE, PINNED, rounded
from fsdp_doctor.memory.lag import LAUNCHES, Lag
from fsdp_doctor.memory.simulate import living, simulate, steps

MIB = 1 << 20


def kept(made: written.Events, folder: Path) -> EventList:
    path = folder / "events.bin"
    made.write(str(path))
    return read(path, made.header())


def training(folder: Path) -> EventList:
    """Two steps: activations of 40 MiB, gradients of 10 MiB, optimizer state of 20 MiB from the first step on."""
    e = written.Events()
    where = e.modules.number("layers.0")
    e.mark("init")
    e.allocate(10 * MIB, 0, "aten::empty", 0)
    for step in (1, 2):
        e.mark(f"step {step}")
        e.mark("forward")
        activation = e.allocate(40 * MIB, 0, "aten::mm", where)
        e.mark("backward")
        gradient = e.allocate(10 * MIB, 0, "aten::mm", where)
        e.free(activation)
        e.mark("after backward")
        e.mark("optimizer")
        if step == 1:
            e.allocate(20 * MIB, 0, "aten::zeros_like", 0)
        e.mark("after optimizer")
        e.free(gradient)
        e.mark("end of step")
    return kept(e, folder)


def test_steps_and_peaks(tmp_path: Path) -> None:
    run = simulate(training(tmp_path))
    first, second = steps(run.phases)
    assert (first.fwd_bwd_peak, first.after_backward, first.opt_peak) == (60 * MIB, 20 * MIB, 40 * MIB)
    assert (second.fwd_bwd_peak, second.after_backward, second.opt_peak) == (80 * MIB, 40 * MIB, 40 * MIB)
    assert run.peak == 80 * MIB


def test_what_lives_at_the_peak(tmp_path: Path) -> None:
    events = training(tmp_path)
    held = living(events, simulate(events).peak_row)
    assert sorted(b.size // MIB for b in held) == [10, 10, 20, 40]
    assert {b.module for b in held if b.size == 40 * MIB} == {"layers.0"}


def test_blocks_that_another_stream_used_wait_for_the_host(tmp_path: Path) -> None:
    e = written.Events()
    for _ in range(3):
        block = e.allocate(30 * MIB, 0, "all-gather", 0)
        e.row(written.USED, block, 0, 1, 0, 0)
        e.free(block)
    upto = len(e)
    e.row(written.WAITED, -1, upto, 1, 0, 0)
    e.allocate(30 * MIB, 0, "all-gather", 0)
    events = kept(e, tmp_path)
    assert simulate(events).reserved_peak == 30 * MIB
    assert simulate(events, lag=Lag(LAUNCHES)).reserved_peak == 90 * MIB


def test_host_memory_is_kept_apart(tmp_path: Path) -> None:
    e = written.Events()
    block = e.allocate(7 * MIB, 0, "shard", 0, host=True)
    e.free(block, host=True)
    e.allocate(MIB, 0, "x", 0)
    run = simulate(kept(e, tmp_path))
    assert (run.host.peak, run.peak) == (7 * MIB, MIB)


def test_pinned_blocks_are_powers_of_two_and_are_kept(tmp_path: Path) -> None:
    e = written.Events()
    first = e.allocate(5 * MIB, PINNED, "shard", 0, host=True)
    e.allocate(3 * MIB, PAGEABLE, "state", 0, host=True)
    e.free(first, host=True)
    e.allocate(7 * MIB, PINNED, "gradient", 0, host=True)
    e.allocate(MIB + 1, PINNED, "gradient", 0, host=True)
    host = simulate(kept(e, tmp_path)).host
    assert (host.pinned, host.peak, host.pinned_requested) == (10 * MIB, 13 * MIB, 8 * MIB + 1)
    assert host.requested == 11 * MIB + 1


@pytest.mark.parametrize(("size", "block"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (5 << 30, 8 << 30)])
def test_pinned_sizes(size: int, block: int) -> None:
    assert rounded(size) == block


@pytest.mark.parametrize("change", [{"rows": 10**9}, {"rows": -1}, {"rows": "8"}, {"operators": 3}])
def test_a_header_that_lies_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    e = written.Events()
    e.allocate(512, 0, "x", 0)
    e.write(str(tmp_path / "events.bin"))
    with pytest.raises(BrokenEvents):
        read(tmp_path / "events.bin", {**e.header(), **change})


def test_a_stream_that_uses_its_own_blocks_waits_for_nothing(tmp_path: Path) -> None:
    e = written.Events()
    for _ in range(3):
        block = e.allocate(30 * MIB, 1, "all-gather", 0)
        e.row(written.USED, block, 0, 1, 0, 0)
        e.free(block)
    assert simulate(kept(e, tmp_path), lag=Lag(LAUNCHES)).reserved_peak == 30 * MIB


def test_the_queue_of_launches_bounds_the_wait(tmp_path: Path) -> None:
    e = written.Events()
    for _ in range(4):
        block = e.allocate(30 * MIB, 0, "all-gather", 0)
        e.row(written.USED, block, 0, 1, 0, 0)
        e.free(block)
        for _ in range(LAUNCHES):
            e.free(e.allocate(512, 0, "aten::add", 0))
    assert simulate(kept(e, tmp_path), lag=Lag(LAUNCHES)).reserved_peak == 32 * MIB
