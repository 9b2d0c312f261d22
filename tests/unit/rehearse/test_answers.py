"""From what a child left to the answer: measured phases, problems, scripts that end early, notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from fsdp_doctor.cli.rehearse_text import render
from fsdp_doctor.memory.rehearsal.answers import conclude, typical_seconds
from fsdp_doctor.memory.rehearsal.job import Rehearse
from fsdp_doctor.memory.rehearsal.report_data import data
from fsdp_doctor.memory.rehearsal.run import Outcome, innermost
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory_measured import MeasuredOom
from fsdp_doctor.subjects.rehearsal import Rehearsal
from fsdp_doctor.tables.gpu_memory import product

JOB = Rehearse(64, 8, "train.py", None, ())
GIB = 1 << 30


def row(name: str, peak: float, after: float, seconds: float = 0.5) -> dict[str, object]:
    return {
        "name": name,
        "before": 0,
        "peak": int(peak * GIB),
        "after": int(after * GIB),
        "reserved": int((peak + 1) * GIB),
        "seconds": seconds,
    }


def measured(**more: object) -> Outcome:
    phases = [
        row("init", 20, 2, 9.0),
        row("step 1", 2, 2, 0.0),
        row("forward", 10, 9, 3.0),
        row("backward", 12, 3, 4.0),
        row("after backward", 3, 3),
        row("optimizer", 6, 5),
        row("after optimizer", 5, 4),
        row("step 2", 4, 4, 0.0),
        row("forward", 12, 11),
        row("backward", 14, 5),
        row("optimizer", 7, 5),
        row("after optimizer", 5, 4),
    ]
    result = {
        "mode": "gpu",
        "ended": "steps",
        "steps_done": 2,
        "groups": 3,
        "phases": phases,
        "outside": GIB,
        "total": 80 * GIB,
        "name": "NVIDIA H100 80GB HBM3",
        "torch": "2.11.0",
        **more,
    }
    return Outcome(result, None)


def failed(result: Mapping[str, object], said: str = "") -> Outcome:
    return Outcome(result, None, said=said)


def test_what_a_gpu_measured() -> None:
    found = conclude(JOB, measured(), None)
    f = found.forecast
    assert f is not None and found.mode == "gpu" and found.problem is None
    assert [(s.fwd_bwd_peak // GIB, s.after_backward // GIB, s.opt_peak // GIB) for s in f.steps] == [
        (12, 3, 6),
        (14, 5, 7),
    ]
    assert (f.allocated, f.peak.phase, f.peak.step) == (20 * GIB, "init", 0)
    assert found.init_peak == 20 * GIB and f.steady == 4 * GIB and f.reserved_high == 21 * GIB
    assert (f.overhead.context, f.overhead.libraries, f.margin) == (GIB, 0, 0)
    assert f.capacity == 80 * GIB and f.fits
    assert found.step_seconds == pytest.approx((8.5, 2.0)) and typical_seconds(found.step_seconds) == 2.0
    assert data(found)["seconds_per_step"] == 2.0


def test_the_named_gpu_is_the_one_that_has_to_hold_it() -> None:
    named = product("16")
    assert named is not None
    f = conclude(JOB, measured(), named).forecast
    assert f is not None and f.capacity == 16 * GIB and not f.fits
    one = conclude(replace(JOB, world_size=1), measured(), named).forecast
    assert one is not None and one.overhead.nccl == 0 < f.overhead.nccl


OUT = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
    "3.00 GiB is free. Of the allocated memory 62.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch "
    "but unallocated."
)


def ran_out(step: int, phase: str, rows: int) -> Rehearsal:
    said = {"kind": "oom", "text": OUT, "place": "train.py:7", "phase": phase, "step": step}
    done = measured(problem=said, ended="raised", steps_done=max(0, step - 1))
    assert isinstance(done.result["phases"], list)
    return conclude(JOB, Outcome({**done.result, "phases": done.result["phases"][:rows]}, None), None)


def test_memory_that_runs_out_is_told_with_what_came_before_it() -> None:
    found = ran_out(2, "backward", 10)
    assert found.oom == MeasuredOom("backward", "step 2", OUT) and found.forecast is not None
    assert len(found.step_seconds) == 1, "the step that was not finished is no step"
    assert data(found)["fits"] is False and found.problem is not None and found.problem.line == 7
    shown = render(found, Style())
    assert "1 of 2 optimizer steps" in shown and "until memory ran out" in shown and "needed" not in shown
    early = ran_out(1, "forward", 3)
    assert early.forecast is not None and early.forecast.steps == () and early.step_seconds == ()
    assert "peak allocated 20.00 GiB" in render(early, Style()) and "between steps" not in render(
        early, Style()
    )


def test_a_measurement_reads_as_one() -> None:
    shown = render(conclude(JOB, measured(workspaces=64 << 20), None), Style())
    assert (
        "of which cuBLAS workspaces 64.0 MiB" in shown
        and "margin" not in shown
        and " libraries 0" not in shown
    )
    assert "2.000 s per step without communication (the first 8.500 s)" in shown
    assert "CUDA context and libraries 1.00 GiB" in shown and "--device fake" in shown


def test_steps_that_are_alike_share_a_line() -> None:
    found = conclude(JOB, measured(), None)
    assert found.forecast is not None
    first, second = found.forecast.steps
    alike = replace(found, forecast=replace(found.forecast, steps=(first, second, second, second)))
    shown = render(alike, Style())
    assert "step 1: " in shown and "steps 2 to 4: forward and backward 14.00 GiB" in shown


def test_a_device_that_failed_leaves_its_rows_and_the_scripts_own_error() -> None:
    said = {"kind": "script", "text": "AcceleratorError: CUDA error", "place": "train.py:7"}
    done = measured(problem=said, ended="raised")
    kept = {k: v for k, v in done.result.items() if k not in ("total", "name", "outside")}
    found = conclude(JOB, Outcome(kept, None), None)
    assert found.problem is not None and found.problem.line == 7 and found.oom is None
    assert found.forecast is not None and found.forecast.capacity is None


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"ended": "end"}, "the script ended before any forward; its last words: usage: x"),
        ({"ended": "exit", "code": 2}, "the script exited with status 2 before any forward"),
        ({"ended": "end", "forwards": 3}, "after a forward, without a backward"),
        ({"ended": "end", "forwards": 3, "backwards": 3}, "after a backward, without an optimizer step"),
    ],
)
def test_scripts_that_end_early(result: dict[str, object], said: str) -> None:
    problem = conclude(JOB, failed(result, "hello\nusage: x"), None).problem
    assert problem is not None and problem.kind == "early" and said in problem.text


def test_problems_keep_their_kind_and_their_line() -> None:
    said = {
        "kind": "operator",
        "text": "no",
        "operator": "acme::k",
        "module": "layers.0",
        "place": "/a/b.py:7",
    }
    problem = conclude(JOB, failed({"mode": "fake", "problem": said}), None).problem
    assert problem is not None and (problem.file, problem.line) == ("/a/b.py", 7)
    assert "acme::k" in problem.text and "layers.0" in problem.text
    problem = conclude(JOB, Outcome({}, None, "time", "no step was finished", "/a/b.py:9"), None).problem
    assert problem is not None and (problem.kind, problem.line) == ("time", 9)


def test_notes_are_read_and_nonsense_is_not() -> None:
    result = {
        "mode": "fake",
        "ended": "end",
        "assumed": [{"place": "a.py:1", "what": "x", "times": 2}, 7],
        "handled": "no list",
        "unwritten": [{"path": "/out", "how": "torch.save", "bytes": 8, "place": "", "times": 1}],
    }
    found = conclude(JOB, failed(result), product("H100 80GB"))
    assert [(a.place, a.times) for a in found.assumed] == [("a.py:1", 2)] and found.handled == ()
    assert [(u.path, u.bytes) for u in found.unwritten] == [("/out", 8)]
    unnamed = conclude(JOB, failed(result), None)
    assert "no --gpu was named" in unnamed.assumed[-1].what


def test_the_users_own_frame_of_a_stack() -> None:
    stack = (
        "Thread 1 (most recent call first):\n"
        '  File "/env/lib/python3.11/site-packages/torch/nn.py", line 3 in f\n'
        "\n"
        "Thread 2 (most recent call first):\n"
        '  File "/env/lib/python3.11/site-packages/torch/nn.py", line 3 in f\n'
        '  File "/home/me/train.py", line 41 in main\n'
        '  File "<frozen runpy>", line 88 in _run_code\n'
    )
    assert innermost(stack) == "/home/me/train.py:41"
