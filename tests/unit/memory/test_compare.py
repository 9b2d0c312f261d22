"""Measured histories as events, and what is said of their difference from a prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.child.meters import Entry
from fsdp_doctor.memory.child.tracing import Call, merge
from fsdp_doctor.memory.compare import differences, measured_phases, moments, peak
from fsdp_doctor.memory.events import EventList, read
from fsdp_doctor.memory.simulate import simulate
from fsdp_doctor.subjects.memory_measured import OperatorBytes

MIB = 1 << 20


def kept(made: written.Events, folder: Path, name: str = "events.bin") -> EventList:
    made.write(str(folder / name))
    return read(folder / name, made.header())


def test_a_history_becomes_events_with_operators_and_what_was_there_before(tmp_path: Path) -> None:
    made = written.Events()
    block = made.modules.number("layers.0")
    entries = [
        Entry(False, 100, 4 * MIB, 7),  # place 10
        Entry(False, 200, 8 * MIB, 7),
        Entry(True, 900, 3 * MIB, 7),  # older than the history
        Entry(True, 100, 4 * MIB, 7),
    ]
    calls = [Call(10, 11, "aten::mm", block), Call(11, 12, "aten::gelu", block)]
    merge(entries, 10, 5 * MIB, calls, [(10, "step 2"), (10, "forward"), (12, "backward")], made)
    events = kept(made, tmp_path)
    run = simulate(events)
    assert [(p.name, p.after) for p in run.phases if p.name in ("step 2", "forward", "backward")] == [
        ("step 2", 5 * MIB),
        ("forward", 17 * MIB),
        ("backward", 10 * MIB),
    ]
    assert run.peak == 17 * MIB
    assert {"aten::mm", "aten::gelu", "held from before the step"} <= set(events.operator_names)


def test_a_sum_of_gradients_takes_the_block_of_an_operand_that_nobody_else_holds(tmp_path: Path) -> None:
    def peak_where(left_dies: bool) -> int:
        made = written.Events()
        entries = [Entry(False, 1, 6 * MIB, 0), Entry(False, 2, 6 * MIB, 0), Entry(False, 3, 6 * MIB, 0)]
        entries += [Entry(True, 1, 6 * MIB, 0)] if left_dies else []
        calls = [Call(0, 1, "aten::mm", 0), Call(1, 2, "aten::mm", 0), Call(2, 3, "aten::add", 0, left=1)]
        merge(entries, 0, 0, calls, [(0, "step 1"), (0, "backward")], made)
        return simulate(kept(made, tmp_path)).peak

    assert peak_where(left_dies=True) == 12 * MIB
    assert peak_where(left_dies=False) == 18 * MIB


def step(folder: Path, name: str, norm: int, operator: str) -> EventList:
    e = written.Events()
    e.allocate(2 * MIB, 0, "aten::empty", 0)
    e.mark("step 2")
    for i in range(2):
        e.allocate(norm, 0, operator, e.modules.number(f"layers.{i}.norm"))
        e.allocate(10 * MIB, 0, "aten::mm", e.modules.number(f"layers.{i}.up"))
    e.mark("end of step")
    return kept(e, folder, name)


def test_the_modules_that_differ_are_named_with_both_sides_operators(tmp_path: Path) -> None:
    ours = step(tmp_path, "ours", 2 * MIB, "aten::empty_like")
    theirs = step(tmp_path, "theirs", 8 * MIB, "aten::_to_copy")
    (found,) = differences(ours, theirs)
    assert (found.module, found.predicted, found.measured) == ("layers.*.norm", 4 * MIB, 16 * MIB)
    assert found.operators == (
        OperatorBytes("aten::_to_copy", 0, 16 * MIB),
        OperatorBytes("aten::empty_like", 4 * MIB, 0),
    )
    assert differences(ours, ours) == ()


def test_another_operator_of_the_same_size_is_no_difference(tmp_path: Path) -> None:
    ours = step(tmp_path, "ours", 2 * MIB, "aten::empty_like")
    theirs = step(tmp_path, "theirs", 2 * MIB, "aten::_fused_rms_norm")
    assert differences(ours, theirs) == ()


def row(name: str, top: int, after: int) -> dict[str, object]:
    return {"name": name, "before": 0, "peak": top, "after": after, "reserved": top + MIB}


def test_moments_end_where_memory_ran_out(tmp_path: Path) -> None:
    e = written.Events()
    e.mark("init")
    e.mark("batch")
    e.mark("step 1")
    e.mark("forward")
    block = e.allocate(5 * MIB, 0, "aten::mm", 0)
    e.mark("backward")
    e.free(block)
    run = simulate(kept(e, tmp_path))
    phases = measured_phases(
        [row("init", 0, 0), row("batch", 0, 0), row("step 1", 0, 0), row("forward", 4, 4)]
    )
    found = moments(run, phases)
    assert [(m.step, m.phase, m.predicted_peak, m.measured_peak) for m in found][-1] == (
        1,
        "forward",
        5 * MIB,
        4,
    )
    assert peak(phases) == 4, "no step was completed: the most that was seen"


def test_phases_that_are_not_as_expected_are_refused() -> None:
    for rows in (None, [1], [{"name": "init", "peak": "much"}]):
        with pytest.raises(ValueError, match=r"phase|bytes"):
            measured_phases(rows)
