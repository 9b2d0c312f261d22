"""WRP022 against what an H200 trained: it accuses exactly the layers whose losses fell behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.cases.wrap_recurrent import lstm, speech
from fsdp_doctor.checks.wrap.recurrent import recurrent_layers
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Status

FIXTURES = Path(__file__).parents[3] / "fixtures" / "memory_truth"
RUNS = json.loads((FIXTURES / "recurrent_stale.json").read_text())["runs"]


@pytest.mark.parametrize("run", [r for r in RUNS if r["cudnn"]], ids=lambda r: str(r["id"]))
def test_the_layers_that_stood_still_are_accused(run: dict[str, object]) -> None:
    plain, sharded = run["plain"], run["sharded"]
    assert sharded[0] == plain[0]  # type: ignore[index]
    stood_still = sharded != plain
    assert bool(run["gathered_off"]) == stood_still
    plan = speech(
        api=run["api"],
        param_dtype=run["param_dtype"],
        recurrent=("encoder.rnn",) if run["flattens"] else (),
    )
    (found,) = run_checks([recurrent_layers], lstm(plan, dtype=run["dtype"]), Options())
    assert found.status is (Status.FAIL if stood_still else Status.PASS)
