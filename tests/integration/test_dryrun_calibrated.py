"""Operators measured for a job, on CPU tensors with a meter that counts storages, and used in its dry-run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fsdp_doctor.memory.answers import forecast
from fsdp_doctor.memory.calibrate import Calibrated, calibrate, with_table
from fsdp_doctor.memory.calibration import Table, write
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.tables.gpu_memory import product

MODELS = """
import torch, torch.nn as nn, torch.nn.functional as F

@torch.library.custom_op("acme::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by

@scale.register_fake
def _(x, by):
    return torch.empty_like(x)

scale.register_autograd(lambda ctx, go: (go * 2.0, None))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192, bias=False)

    def forward(self, x):
        q, k, v = scale(self.qkv(x), 2.0).view(2, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).float().mean()

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(64, 64, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0].float().mean()

def net():
    return Net()

def recurrent():
    return Recurrent()

def batch(device):
    return torch.zeros(2, 128, 64, device=device, dtype=torch.bfloat16),
"""
AMPERE = Table("2.11", None, None, "a GPU", 80, "now")
"""An architecture whose attention was not measured, so that it is watched."""


def job(folder: Path) -> Job:
    path = folder / "models.py"
    path.write_text(MODELS)
    return Job(model=f"{path}:net", batch=f"{path}:batch", world_size=4, dtype="bfloat16")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Calibrated]:
    asked = job(tmp_path_factory.mktemp("calibrated"))
    return asked, calibrate(asked, AMPERE, deadline=100, meter={"meter": "counting"})


@pytest.fixture(scope="module")
def replayed(made: tuple[Job, Calibrated]) -> dict[str, Replay]:
    """Without figures, and with those that were measured, one of which is made large."""
    asked, found = made
    grown = [replace(e, during=(8 << 20,)) for e in found.table.entries if e.operator == "acme::scale"]
    return {
        "without": with_table(asked, AMPERE, sm=80, deadline=100),
        "with": with_table(asked, found.table.with_entries(grown), sm=80, deadline=100),
    }


@pytest.mark.timeout(300)
def test_the_unknown_operators_of_a_job_are_measured(made: tuple[Job, Calibrated]) -> None:
    found = made[1]
    by_operator = {e.operator: e for e in found.measured}
    assert by_operator["acme::scale"].during == () and by_operator["acme::scale"].kept == 0
    assert by_operator["aten::scaled_dot_product_attention"].backend in ("flash", "math")
    assert found.calls >= len(found.measured) > 1
    assert all("aten::_scaled_dot_product" in o for o in found.failed), (
        "CUDA's kernels alone have no CPU form"
    )


@pytest.mark.timeout(300)
def test_measured_operators_are_no_longer_unknown_and_their_blocks_count(
    made: tuple[Job, Calibrated], replayed: dict[str, Replay]
) -> None:
    asked = made[0]
    before, after = (forecast(replayed[k], asked, None) for k in ("without", "with"))
    assert "acme::scale" in dict(before.unknown_operators)
    assert "acme::scale" not in dict(after.unknown_operators)
    assert before.allocated + (7 << 20) < after.allocated < before.allocated + (9 << 20)


@pytest.mark.timeout(300)
def test_a_recurrent_layer_is_measured_as_a_whole(tmp_path: Path) -> None:
    asked = replace(
        job(tmp_path), model=f"{tmp_path / 'models.py'}:recurrent", dtype=None, autocast="bfloat16"
    )
    found = calibrate(asked, AMPERE, deadline=100, meter={"meter": "counting"})
    (entry,) = [e for e in found.measured if e.operator == "aten::gru"]
    assert len(entry.during) == 2 and entry.kept > 0
    grown = replace(entry, during=(111 << 10, 222 << 10), kept=333 << 10)
    done = with_table(asked, replace(AMPERE, entries=(grown,)), sm=80, deadline=100)
    assert {111 << 10, 222 << 10, 333 << 10} <= set(done.events.sizes)


@pytest.mark.timeout(300)
def test_a_job_names_its_rules_and_how_they_stand_on_the_gpu(
    made: tuple[Job, Calibrated], replayed: dict[str, Replay]
) -> None:
    before, after = (forecast(replayed[k], made[0], product("A100 80GB")).rules for k in ("without", "with"))
    flash = "aten::_scaled_dot_product_flash_attention_backward"
    marks = {r.operator: (r.mark, r.seen) for r in before}
    assert marks[flash] == ("assumed", "sm 90, torch 2.11")
    assert marks["aten::scaled_dot_product_attention"] == ("assumed", "")
    assert {r.operator: r.mark for r in after}["aten::scaled_dot_product_attention"] == "calibrated"
    assert {r.mark for r in forecast(replayed["without"], made[0], product("H100 80GB")).rules} == {
        "measured"
    }


def operators(done: Replay) -> set[str]:
    return set(done.events.operator_names)


@pytest.mark.timeout(300)
def test_the_backend_that_was_seen_is_taken(
    made: tuple[Job, Calibrated], replayed: dict[str, Replay]
) -> None:
    asked, found = made
    assert "aten::_scaled_dot_product_flash_attention" in operators(replayed["without"])
    entries = [
        replace(e, backend="efficient")
        for e in found.table.entries
        if e.operator == "aten::scaled_dot_product_attention"
    ]
    other = with_table(asked, replace(AMPERE, entries=tuple(entries)), sm=80, deadline=100)
    assert "aten::_scaled_dot_product_efficient_attention" in operators(other)
    assert "aten::_scaled_dot_product_flash_attention" not in operators(other)


@pytest.mark.timeout(240)
def test_a_table_is_read_by_the_command_and_a_broken_one_is_one_line(
    made: tuple[Job, Calibrated], tmp_path: Path
) -> None:
    asked, found = made
    file = tmp_path / "table.json"
    write(replace(found.table, sm=90), file)
    command = [
        sys.executable,
        "-m",
        "fsdp_doctor",
        "dryrun",
        "--model",
        asked.model,
        "--batch",
        str(asked.batch),
    ]
    command += ["--world-size", "4", "--dtype", "bf16", "--format", "json", "--calibration", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    told = json.loads(done.stdout)["data"]
    assert told["calibration"]["entries"] == len(found.table.entries) and told["unknown_operators"] == []
    file.write_text(file.read_text().replace('"kept": 0', '"kept": "0"'))
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2 and "kept: a whole number" in done.stderr and "Traceback" not in done.stderr
