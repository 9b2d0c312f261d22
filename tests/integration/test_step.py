"""A forecast from ranks that really measured: the figures go in, and what comes out follows from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
UNITS = ["--units", "8x1M", "--tokens", "64"]


def test_the_forecast_follows_from_the_measured_collectives() -> None:
    words = [
        "probe",
        "--nproc",
        "2",
        "--backend",
        "gloo",
        "--profile",
        "quick",
        "--no-pairs",
        "--format",
        "json",
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fsdp_doctor",
            *words,
            *UNITS,
            "--tflops",
            "0.001",
            "--reduce-dtype",
            "float32",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # a busy machine may show a slow rank
    data = json.loads(done.stdout)["data"]
    step, ops = data["step"], data["ops"]
    size = str(2 * 10**6)
    assert size in ops["all_gather"], "the unit's own size was not measured"
    gather = ops["all_gather"][size]["time_us"]["median"] * 1e-6
    compute = 8 * 3 * 2 * 1e6 * 64 / 1e9
    whole = step["full_shard"]
    assert whole["compute"] == pytest.approx(compute)
    # What was measured twice, because a rank was suspected, counts with the faster of both.
    assert 0 < step["hides_from_tokens"]["forward"] <= 1.01 * gather * 1e9 / 2e6 + 0.05  # it is rounded
    assert whole["seconds"] == pytest.approx(whole["compute"] + whole["exposed"])
    assert step["inputs"]["reduce_dtype"] == "float32" and step["inputs"]["units"] == 8
    (result,) = [r for r in json.loads(done.stdout)["results"] if r["code"] == "PRB030"]
    assert (result["status"] == "warn") == (whole["exposed_share"] >= 0.15)
