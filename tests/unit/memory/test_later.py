"""One more step than was replayed."""

from __future__ import annotations

from pathlib import Path

from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import BUCKETS, EventList, read
from fsdp_doctor.memory.later import with_another
from fsdp_doctor.memory.simulate import simulate, steps

MIB = 1 << 20


def kept(made: written.Events, folder: Path) -> EventList:
    made.write(str(folder / "events.bin"))
    return read(folder / "events.bin", made.header())


def training(folder: Path, grown: int = 0) -> EventList:
    """Two steps; each makes a block, by `grown` bytes larger, before it frees that of the one before."""
    e = written.Events()
    handed = e.allocate(10 * MIB, 0, "first", 0)
    for step in (1, 2):
        e.mark(f"step {step}")
        e.mark("forward")
        e.mark("backward")
        work = e.allocate(40 * MIB, 0, "aten::mm", 0)
        own = e.allocate(10 * MIB + step * grown, 0, "own", 0)
        e.free(handed)
        e.free(work)
        handed = own
        e.mark("after backward")
        e.mark("optimizer")
        e.mark("end of step")
    e.free(handed)
    return kept(e, folder)


def test_a_third_step_is_like_the_second(tmp_path: Path) -> None:
    events = training(tmp_path)
    longer = with_another(events)
    first, second, third = steps(simulate(longer).phases)
    assert (first, second) == steps(simulate(events).phases)
    assert third == second
    assert third.fwd_bwd_peak == 60 * MIB


def test_what_does_not_repeat_is_left(tmp_path: Path) -> None:
    events = training(tmp_path, grown=MIB)
    assert with_another(events) is events


def test_without_an_end_there_is_no_more(tmp_path: Path) -> None:
    e = written.Events()
    e.mark("step 1")
    e.allocate(MIB, 0, "x", 0)
    events = kept(e, tmp_path)
    assert with_another(events) is events


def test_buckets_of_ddp_are_laid_out_once(tmp_path: Path) -> None:
    """The second step frees the first bucket and makes others; the third step keeps them."""
    e = written.Events()
    first = e.allocate(64 * MIB, 0, BUCKETS, 0)
    for step in (1, 2):
        e.mark(f"step {step}")
        e.mark("forward")
        if step == 2:
            e.free(first)
            for _ in range(2):
                e.allocate(32 * MIB, 0, BUCKETS, 0)
        e.mark("backward")
        e.free(e.allocate(40 * MIB, 0, "aten::mm", 0))
        e.mark("after backward")
        e.mark("optimizer")
        e.mark("end of step")
    longer = with_another(kept(e, tmp_path))
    found = steps(simulate(longer).phases)
    assert len(found) == 3
    assert found[2] == found[1]
    assert found[2].after_backward == 64 * MIB
