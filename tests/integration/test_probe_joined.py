"""Probes of a job from its own ranks, which a launcher started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.probing import processes_of_probes

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    monkeypatch.setenv("PROBING", str(os.getpid()))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    until = time.monotonic() + 10
    while processes_of_probes() and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of_probes() == []
    assert list(folder.glob("fsdp-doctor-probe-*")) == []


def torchrun(
    output: Path, *arguments: str, ranks: int = 2, sabotage: str = "none:-1"
) -> tuple[dict[str, Any], int]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "tests.support.joined", "probe", "--profile", "quick", "--backend", "gloo"]
    command += ["--format", "json", "--output", str(output), *arguments]
    variables = {**os.environ, "SABOTAGE": sabotage, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert output.exists(), done.stderr[-2000:]
    return json.loads(output.read_text()), done.returncode


def test_a_healthy_job(tmp_path: Path) -> None:
    told, code = torchrun(tmp_path / "out.json")
    assert code == 0 and told["verdict"] in ("pass", "warn"), told["results"]
    data = told["data"]
    assert data["world_size"] == 2 and [r["stage"] for r in data["ranks"]] == ["done", "done"]
    assert set(data["ops"]) == {"all_gather", "reduce_scatter", "all_reduce"}
    assert all(f["correct"] for sizes in data["ops"].values() for f in sizes.values())
    assert {(p["source"], p["target"]) for p in data["pairs"]} == {(0, 1), (1, 0)}
    assert data["counters"]["0"]["read"] > 0 and "1" not in data["counters"]


def test_a_rank_that_stands_still_is_named(tmp_path: Path) -> None:
    told, code = torchrun(tmp_path / "out.json", "--deadline", "60", sabotage="stop:1:60")
    failed = [r for r in told["results"] if r["status"] == "fail"]
    assert code == 1 and [(r["code"], r["subject"]["rank"]) for r in failed] == [("PRB004", 1)], failed
    assert "SIGSTOP" in failed[0]["found"]


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    told, code = torchrun(tmp_path / "out.json", sabotage="kill:0:60")
    failed = [r for r in told["results"] if r["status"] == "fail"]
    assert code == 1 and [(r["code"], r["subject"]["rank"]) for r in failed] == [("PRB003", 0)], failed
    assert "SIGKILL" in failed[0]["found"]


def test_data_that_is_wrong_with_the_devices_in_another_order_only(tmp_path: Path) -> None:
    told, code = torchrun(tmp_path / "out.json", sabotage="permute-reordered:-1")
    failed = [r for r in told["results"] if r["status"] == "fail"]
    assert code == 1 and [(r["code"], r["row"]) for r in failed] == [("PRB001", "wrong")], failed
    assert "reordered GPUs" in failed[0]["found"]


def test_a_rank_that_does_not_come_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "fsdp_doctor", "probe", "--wait", "2", "--format", "json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=90, check=False)
    failed = [r for r in json.loads(done.stdout)["results"] if r["status"] == "fail"]
    assert done.returncode == 1 and [(r["code"], r["subject"]["rank"]) for r in failed] == [("PRB002", 1)]
