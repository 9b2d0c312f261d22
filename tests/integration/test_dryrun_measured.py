"""A job run on real tensors beside its prediction: on the CPU with a meter that counts storages, and on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.measure import measure
from fsdp_doctor.memory.replay import Replay, ReplayError, replay
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement

MODELS = """
import torch, torch.nn as nn, torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, dim, rms):
        super().__init__()
        self.norm = nn.RMSNorm(dim) if rms else nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, dim=256, layers=3, rms=False):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.blocks = nn.ModuleList(Block(dim, rms) for _ in range(layers))

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            x = b(x)
        return F.cross_entropy((x @ self.embed.weight.t()).flatten(0, 1), ids.flatten())

def net(**kw):
    return Net(**kw)

def batch(device, rows=4, seq=512):
    return torch.randint(0, 128, (rows, seq), device=device),

def late(device):
    return torch.full((4, 512), 999, device=device),
"""
COUNTING = {"meter": "counting"}
EXACT = ("init", "batch", "forward", "backward")
"""Phases whose operators are the same on the CPU; its optimizers step parameter by parameter."""


def job(folder: Path, **more: object) -> Job:
    given: dict[str, object] = {"wrap": ("Block",), "optimizer": "adamw_loop", "param_dtype": "bfloat16"}
    given |= {"reduce_dtype": "float32"}
    path = folder / "models.py"
    path.write_text(MODELS)
    return Job(model=f"{path}:net", batch=f"{path}:batch", world_size=8, **{**given, **more})  # type: ignore[arg-type]


def predicted(asked: Job) -> Replay:
    return replay(asked, sm=90, deadline=100)


def measured(asked: Job, expected: Replay, **meter: object) -> MemoryMeasurement:
    return measure(asked, expected, deadline=100, meter={**COUNTING, **meter})


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "more",
    [{}, {"api": "fsdp1"}, {"api": "ddp", "wrap": (), "param_dtype": None, "reduce_dtype": None}],
    ids=["fsdp2", "fsdp1", "ddp"],
)
def test_what_is_measured_is_the_program_that_was_predicted(tmp_path: Path, more: dict[str, object]) -> None:
    asked = job(tmp_path, **more)
    found = measured(asked, predicted(asked))
    assert found.oom is None and not found.untraced
    assert [m.phase for m in found.moments if m.step == 2] == [
        "forward",
        "backward",
        "after backward",
        "optimizer",
        "after optimizer",
    ]
    for m in found.moments:
        if m.phase in EXACT:
            assert m.predicted_peak == pytest.approx(m.measured_peak, rel=0.03), m
            assert m.predicted_after == pytest.approx(m.measured_after, rel=0.01, abs=1 << 16), m
    assert found.error == pytest.approx(0, abs=0.03)


@pytest.fixture(scope="module")
def rms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Replay, MemoryMeasurement]:
    asked = job(tmp_path_factory.mktemp("rms"), model_args={"rms": True})
    expected = predicted(asked)
    return asked, expected, measured(asked, expected)


@pytest.mark.timeout(240)
def test_a_kernel_that_keeps_more_is_named_with_its_module(
    rms: tuple[Job, Replay, MemoryMeasurement],
) -> None:
    """RMSNorm is a composite on the CPU that keeps fp32 copies; the prediction is for CUDA's fused kernel."""
    found = rms[2]
    assert found.error is not None and found.error < -0.05
    first = found.differences[0]
    assert first.module == "blocks.*.norm" and first.measured > 3 * first.predicted
    assert "aten::_to_copy" in {o.operator for o in first.operators}


@pytest.mark.timeout(240)
def test_out_of_memory_is_an_answer(rms: tuple[Job, Replay, MemoryMeasurement]) -> None:
    asked, expected, whole = rms
    limit = whole.measured * 3 // 4
    found = measured(asked, expected, limit_bytes=limit)
    assert (
        found.oom is not None and found.oom.stage == "step 1" and found.oom.phase in ("forward", "backward")
    )
    assert "Tried to allocate" in found.oom.text
    assert found.error is None and 0 < found.measured <= limit
    assert found.moments[-1].phase == found.oom.phase, "what was measured until then is told"


@pytest.mark.timeout(240)
def test_what_fails_on_real_values_is_said_with_its_place(
    rms: tuple[Job, Replay, MemoryMeasurement],
) -> None:
    asked, expected, _ = rms
    bad = replace(asked, batch=str(asked.batch).replace(":batch", ":late"))
    with pytest.raises(ReplayError, match=r"index out of range") as caught:
        measured(bad, expected)
    assert "models.py" in caught.value.place


def dryrun(asked: Job, *more: str) -> tuple[int, dict[str, Any], str]:
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
    command += ["--world-size", "8", "--wrap", "Block", "--param-dtype", "bf16", "--format", "json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.stderr


@pytest.mark.timeout(240)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_prediction_is_there_and_one_line_says_why_nothing_was_measured(
    tmp_path: Path,
) -> None:
    code, report, error = dryrun(job(tmp_path), "--on-gpu")
    assert code == 3 and report["verdict"] == "incomplete" and "Traceback" not in error
    assert report["data"]["peak"]["allocated_bytes"] > 0 and report["data"]["measured"] is None
    (line,) = report["unjudged"]
    assert line.startswith("--on-gpu: there is no GPU to measure on: ") and "\n" not in line


@pytest.mark.gpu
@pytest.mark.timeout(240)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_prediction_is_met(tmp_path: Path) -> None:
    code, report, _ = dryrun(job(tmp_path), "--on-gpu", "--batch-args", '{"rows": 16, "seq": 2048}')
    found = report["data"]["measured"]
    assert code == 0 and found["oom"] is None
    assert abs(found["peak"]["error"]) < 0.02
    assert found["device"]["nvml_after"] is None or found["device"]["taken"] > 0
