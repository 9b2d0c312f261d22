"""What `dryrun` says of other configurations is what a dry-run of them says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(dim) for _ in range(layers)))
    def forward(self, x):
        return self.blocks(x).square().mean()

def net(dim=512, layers=6):
    return Net(dim, layers)

def batch(device, rows=8, seq=256):
    return (torch.randn(rows, seq, 512, device=device),)

def fixed(device):
    return batch(device)
"""
BASE = ("--model", "models.py:net", "--world-size", "8", "--format", "json")
BATCH = ("--batch", "models.py:batch", "--batch-args", '{"rows": 8}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("advice")
    (made / "models.py").write_text(MODEL)
    return made


def dryrun(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "fsdp_doctor", "dryrun", *BASE, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    told = json.loads(done.stdout)["data"] if done.stdout.startswith("{") else {}
    return done.returncode, told, done.stderr


@pytest.fixture(scope="module")
def asked(folder: Path) -> tuple[int, dict[str, Any], str]:
    options = ("--gpu", "2.2", "--advise", "--compare", "--max-batch", "--batch-arg", "rows")
    return dryrun(folder, *BATCH, *options)


@pytest.fixture(scope="module")
def told(asked: tuple[int, dict[str, Any], str]) -> dict[str, Any]:
    return asked[1]


def test_one_line_says_what_will_be_replayed(asked: tuple[int, dict[str, Any], str]) -> None:
    _, told, said = asked
    (line,) = said.splitlines()
    count = sum("why_not" not in row for row in told["strategies"])
    assert f"--compare {count} strategies" in line and "--max-batch some" in line and " s" in line
    tried = {c["change"] for c in told["advice"] if c["basis"] == "replayed"} | set(told["advice_no_help"])
    assert f"--advise {len(tried) + len(told['advice_refused'])} changes" in line


def test_each_change_saves_what_a_dry_run_of_it_says(folder: Path, told: dict[str, Any]) -> None:
    changes = {c["flags"]: c for c in told["advice"] if c["basis"] == "replayed"}
    assert {"--wrap Block", "--checkpoint-activations Block"} <= set(changes)
    assert all(c["saves_bytes"] > 0 for c in changes.values())
    halved = next(f for f in changes if "--accumulate" in f)
    for flags in ("--wrap Block", "--checkpoint-activations Block", halved):
        options = [*BATCH, *shlex.split(flags)] if flags != halved else [*BATCH[:2], *shlex.split(flags)]
        again = dryrun(folder, *options)[1]
        assert again["peak"]["allocated_bytes"] == changes[flags]["allocated_bytes"]
        saved = told["peak"]["allocated_bytes"] - again["peak"]["allocated_bytes"]
        assert saved == changes[flags]["saves_bytes"]


def test_what_checkpointing_costs_is_a_forward(told: dict[str, Any]) -> None:
    found = next(c for c in told["advice"] if c["flags"] == "--checkpoint-activations Block")
    assert found["cost"].startswith("+33% compute")


def test_strategies_are_compared_with_ddp(folder: Path, told: dict[str, Any]) -> None:
    rows = {r["strategy"]: r for r in told["strategies"]}
    whole = dryrun(folder, *BATCH, "--api", "ddp")[1]["peak"]["allocated_bytes"]
    assert rows["DDP"]["allocated_bytes"] == whole
    shards = dryrun(folder, *BATCH, "--wrap", "Block")[1]["peak"]["allocated_bytes"]
    assert rows["FSDP2 reshard_after_forward=True"]["allocated_bytes"] == shards < whole


def test_the_largest_batch_fits_and_the_next_does_not(folder: Path, told: dict[str, Any]) -> None:
    (found,) = told["largest"]
    assert found["confirmed"] and found["argument"] == "rows" and found["next"] == found["largest"] + 1
    for rows, fits in ((found["largest"], True), (found["next"], False)):
        again = dryrun(folder, *BATCH[:3], json.dumps({"rows": rows}), "--gpu", "2.2")[1]
        assert again["fits"] is fits


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", "models.py:batch", "--max-batch"), "needs --gpu"),
        (("--batch", "models.py:batch", "--advise", "--plan-only"), "leave out --plan-only"),
    ],
)
def test_a_wrong_command_line_is_one_line(folder: Path, options: tuple[str, ...], words: str) -> None:
    code, _, said = dryrun(folder, *options)
    assert code == 2 and words in said and "Traceback" not in said


def test_a_batch_without_such_an_argument_is_said(folder: Path) -> None:
    command = [sys.executable, "-m", "fsdp_doctor", "dryrun", *BASE, "--batch", "models.py:fixed"]
    command += ["--gpu", "8", "--max-batch"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == 3 and report["verdict"] == "incomplete"
    assert any("--batch-arg" in u for u in report.get("unjudged", [])) or "--batch-arg" in done.stdout
