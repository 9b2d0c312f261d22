"""`ckpt estimate` beside what a GPU measured: fixtures/checkpoints/gpu_peaks.py and gpu_ranks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fixtures.checkpoints
from fsdp_doctor.ckpt.estimate import Job, Sizes, costs


def measured(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(fixtures.checkpoints.__file__).parent / name).read_text())
    return found


ONE, RANKS = measured("gpu_peaks.json"), measured("gpu_ranks.json")


def predicted(api: str, way: str, part: str, parts: int, mib: dict[str, int], largest: int) -> int:
    """MiB on a GPU; `part` is "model", "optimizer" or "" for both."""
    parameters = mib["parameters"] if part != "optimizer" else 0
    optimizer = mib["optimizer"] if part != "model" else 0
    found = costs(Sizes(parameters, optimizer, largest), Job(parts, parts, api))
    return {c.way.value: c.gpu_per_rank for c in found}[way]


@pytest.mark.parametrize("name", ONE["above"])
def test_one_rank_of_eight(name: str) -> None:
    mib = ONE["mib"]
    api, way, *parts = name.split()
    part = parts[0] if parts else "" if "dcp" in way else "model"
    # FSDP1 gathers whole units: the largest tensor stands for them where a unit is one tensor.
    largest = mib["unit"] if api == "fsdp1" else mib["largest"]
    assert predicted(api, way, part, ONE["ranks"], mib, largest) == ONE["above"][name]


@pytest.mark.parametrize(
    "row", RANKS["above"], ids=lambda r: f"{r['api']} {r['way']} {r['world']}/{r['shard']}"
)
def test_real_ranks(row: dict[str, Any]) -> None:
    mib = RANKS["mib"]
    way, *parts = row["way"].split()
    part = parts[0] if parts else ""
    found = predicted(row["api"], way, part, row["shard"], mib, mib["largest"])
    # FSDP1's clones for a save were a shard of one tensor fewer than there are shards.
    slack = mib["largest"] // row["shard"] if (row["api"], way) == ("fsdp1", "dcp") else 0
    assert found - slack <= row["above"] <= found
