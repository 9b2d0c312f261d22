"""From events to a forecast: what a tensor of the optimizer's step is called, and what the preparation takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsdp_doctor.memory.answers import forecast
from fsdp_doctor.memory.child import events as written
from fsdp_doctor.memory.events import read
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.subjects.memory import MemoryForecast

MIB = 1 << 20


def predicted(
    folder: Path, sharding: int, stepping: int, api: str = "fsdp2", **about: object
) -> MemoryForecast:
    """Two steps of 10 MiB of parameters and 20 MiB of states; temporaries while sharding and in the step."""
    e = written.Events()
    e.mark("init")
    e.allocate(10 * MIB, 0, "aten::empty", 0)
    e.free(e.allocate(sharding * MIB, 0, "aten::cat", 0))
    for step in (1, 2):
        e.mark(f"step {step}")
        e.mark("forward")
        activation = e.allocate(40 * MIB, 0, "aten::mm", 0)
        e.mark("backward")
        gradient = e.allocate(10 * MIB, 0, "aten::mm", 0)
        e.free(activation)
        e.mark("after backward")
        e.mark("optimizer")
        if step == 1:
            e.allocate(20 * MIB, 0, "aten::zeros_like", 0)
        e.free(e.allocate(stepping * MIB, 0, "aten::_foreach_sqrt", 0))
        e.mark("after optimizer")
        e.free(gradient)
        e.mark("end of step")
    e.write(str(folder / "events.bin"))
    job = Job("m.py:net", "m.py:batch", 8, api=api, wrap=("Block",))
    return forecast(Replay(read(folder / "events.bin", e.header()), about), job, None)


def test_what_a_step_frees_is_no_optimizer_state(tmp_path: Path) -> None:
    found = predicted(tmp_path, 1, 60)
    assert found.peak.phase == "optimizer"
    assert {p.name: p.bytes for p in found.peak.parts} == {
        "temporaries": 60 * MIB,
        "optimizer state": 20 * MIB,
        "parameters": 10 * MIB,
        "gradients": 10 * MIB,
    }


def test_the_preparation_must_fit_too(tmp_path: Path) -> None:
    found = predicted(tmp_path, 200, 1)
    assert (found.allocated, found.preparation, found.highest) == (80 * MIB, 210 * MIB, 210 * MIB)
    assert found.peak.phase == "init"
    assert found.needed == 210 * MIB + found.overhead.total
    assert replace(found, capacity=found.needed - 1).fits is False


def test_a_preparation_below_the_peak_adds_nothing(tmp_path: Path) -> None:
    found = predicted(tmp_path, 1, 1)
    assert (found.allocated, found.preparation) == (80 * MIB, 11 * MIB)
    assert found.needed == found.allocated + found.margin + found.overhead.total


def test_tied_weights_that_are_made_apart_are_told(tmp_path: Path) -> None:
    rows = [
        {"name": "embed.weight", "shape": [100, 8], "other_names": ["head.weight"], "unit": 0},
        {"name": "norm.weight", "shape": [8], "other_names": [], "unit": 0},
    ]
    rows = [{**r, "trainable": True, "item_bytes": 4} for r in rows]
    told = [predicted(tmp_path, 1, 60, api, parameters=rows).assumptions for api in ("fsdp2", "fsdp1")]
    assert told[0] == () and [a.place for a in told[1]] == ["embed.weight"]
    assert "head.weight" in told[1][0].what and "800 parameters less" in told[1][0].what
