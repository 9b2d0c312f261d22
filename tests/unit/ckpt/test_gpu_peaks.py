"""`ckpt estimate` beside what a GPU measured: fixtures/checkpoints/gpu_peaks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fixtures.checkpoints
from fsdp_doctor.ckpt.estimate import Job, Sizes, costs

MEASURED: dict[str, Any] = json.loads(
    (Path(fixtures.checkpoints.__file__).parent / "gpu_peaks.json").read_text()
)


@pytest.mark.parametrize("name", MEASURED["above"])
def test_predicted_as_measured(name: str) -> None:
    mib, ranks = MEASURED["mib"], MEASURED["ranks"]
    api, way, *part = name.split()
    parameters = mib["parameters"] if part != ["optimizer"] else 0
    optimizer = mib["optimizer"] if part == ["optimizer"] or way == "dcp" else 0
    # FSDP1 gathers whole units: the largest tensor stands for a unit of one.
    largest = mib["unit"] if api == "fsdp1" and part != ["optimizer"] else mib["largest"]
    found = {c.way.value: c for c in costs(Sizes(parameters, optimizer, largest), Job(ranks, ranks, api))}
    assert found[way].gpu_per_rank == MEASURED["above"][name]
