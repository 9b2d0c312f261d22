"""What depends on timing: DDP's first buckets, and blocks that another stream used."""

from __future__ import annotations

from pathlib import Path

from fsdp_doctor.memory.bounds import ORDER, late_buckets, reserved
from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import BUCKETS, USED, WAITED, EventList, read
from fsdp_doctor.memory.simulate import simulate

MIB = 1 << 20


def kept(made: written.Events, folder: Path) -> EventList:
    made.write(str(folder / "events.bin"))
    return read(folder / "events.bin", made.header())


def two_steps(folder: Path, label: str) -> EventList:
    made = written.Events()
    first = made.allocate(64 * MIB, 0, label, 0)
    for step in (1, 2):
        made.mark(f"step {step}")
        made.mark("forward")
        if step == 2:
            made.free(first)
            made.allocate(32 * MIB, 0, label, 0)
        work = made.allocate(100 * MIB, 0, "aten::mm", 0)
        made.mark("backward")
        made.free(work)
        made.mark("after backward")
        made.mark("optimizer")
        made.mark("end of step")
    return kept(made, folder)


def test_first_buckets_may_outlive_the_backward_in_which_they_are_replaced(tmp_path: Path) -> None:
    events = two_steps(tmp_path, BUCKETS)
    assert simulate(events).peak == 164 * MIB
    assert late_buckets(events) == (64 + 32 + 100) * MIB


def test_other_blocks_do_not(tmp_path: Path) -> None:
    assert late_buckets(two_steps(tmp_path, "fsdp: all-gather")) == 0


def test_a_block_that_another_stream_used_is_reserved_twice_at_most(tmp_path: Path) -> None:
    made = written.Events()
    made.mark("step 1")
    for _ in range(3):
        block = made.allocate(64 * MIB, 0, "aten::mm", 0)
        made.row(USED, block, 0, 1, 0, 0)
        at = len(made)
        made.free(block)
        made.row(WAITED, -1, at, 1, 0, 0)
    events = kept(made, tmp_path)
    low, high = reserved(events, simulate(events))
    assert (low, high) == (int(64 * MIB * (1 - ORDER)), int(128 * MIB * (1 + ORDER)))
