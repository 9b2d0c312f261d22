"""Ranks that srun and mpirun themselves start, where they are installed and work."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.ranks import clean_environment, free_port, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HAS_TORCH = importlib.util.find_spec("torch") is not None
MPIRUN = ("mpirun", "--oversubscribe", "-n")
SRUN = ("srun", "--overcommit", "-n")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(launcher: tuple[str, ...], ranks: int, *command: object) -> subprocess.CompletedProcess[str]:
    return run_plain(*launcher, ranks, *command)


def run_plain(*command: object) -> subprocess.CompletedProcess[str]:
    cluster = {k: v for k, v in os.environ.items() if k == "SLURM_CONF"}
    variables = (
        clean_environment() | cluster | AS_ROOT | {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    )
    return subprocess.run(
        [*map(str, command)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@cache
def works(launcher: tuple[str, ...]) -> bool:
    """Whether it is there and starts a process: a login node's srun without a cluster does not."""
    if shutil.which(launcher[0]) is None:
        return False
    extra = ("--immediate=5",) if launcher is SRUN else ()
    try:
        return run((launcher[0], *extra, *launcher[1:]), 2, sys.executable, "-c", "").returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(params=[SRUN, MPIRUN], ids=["srun", "mpirun"])
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    if not works(found):
        pytest.skip(f"{found[0]} is not installed, or starts nothing here")
    return found


def doctor(launcher: tuple[str, ...], ranks: int, *words: object) -> subprocess.CompletedProcess[str]:
    return run(launcher, ranks, sys.executable, "-m", "fsdp_doctor", *words)


def test_check_judges_all_ranks_together(launcher: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["check", "--profile", "quick", "--deadline", 60, "--select", "RNK", "--format", "json"]
    done = doctor(launcher, 4, *words, "--output", out)
    report = json.loads(out.read_text())
    assert report["data"]["ranks"] == {"world_size": 4, "recorded": [0, 1, 2, 3], "missing": []}, done.stderr
    assert [r["status"] for r in results(report, "RNK001")] == ["pass"]
    assert [r["status"] for r in results(report, "RNK012")] == ["pass"]
    assert done.returncode == 0 and done.stdout == ""


def test_a_rank_that_does_not_start_is_named(launcher: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = f"check --profile quick --deadline 15 --select RNK --format json --output {out}"
    rank = "${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}"
    script = f'if [ "{rank}" = 2 ]; then sleep 17; else exec {sys.executable} -m fsdp_doctor {words}; fi'
    done = run(launcher, 3, "bash", "-c", script)
    (missing,) = [r for r in results(json.loads(out.read_text()), "RNK001") if r["status"] == "fail"]
    assert missing["subject"]["rank"] == 2 and done.returncode != 0  # type: ignore[index]


def test_a_recording_holds_all_ranks(launcher: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "job.zip"
    done = doctor(launcher, 2, "record", "--deadline", 60, out)
    assert done.returncode == 0, done.stderr
    judged = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", "check", "--from", str(out), "--format", "json"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ranks = json.loads(judged.stdout)["data"]["ranks"]
    assert ranks == {"world_size": 2, "recorded": [0, 1], "missing": []}


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_a_probe_measures_over_all_ranks(launcher: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["probe", "--backend", "gloo", "--profile", "quick", "--deadline", 90, "--format", "json"]
    done = doctor(launcher, 2, *words, "--output", out)
    report = json.loads(out.read_text())
    assert [r["stage"] for r in report["data"]["ranks"]] == ["done", "done"], (done.stderr, report["results"])
    assert set(report["data"]["ops"]) == {"all_gather", "reduce_scatter", "all_reduce"}


WAITS = """
import datetime, os, sys, time
rank = os.environ.get("SLURM_PROCID") or os.environ["OMPI_COMM_WORLD_RANK"]
os.environ.update(RANK=rank, WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
dist.all_reduce(torch.ones(4))
print("step 1", flush=True)
if rank == "1":
    if sys.argv[1] == "raise":
        raise ValueError("bad sample")
    time.sleep(45)
    sys.exit()
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize("how", ["raise", "sleep"])
@pytest.mark.parametrize("inside", [True, False], ids=["each-task", "around"])
def test_run_names_the_rank(launcher: tuple[str, ...], how: str, inside: bool, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(WAITS)
    recorded = [sys.executable, "-m", "fsdp_doctor", "run", "--out", folder, "--hang-after", 3, "--"]
    started = [*launcher, "3"]
    job = [sys.executable, script, how]
    done = run(launcher, 3, *recorded, *job) if inside else run_plain(*recorded, *started, *job)
    answer = tmp_path / "answer.json"
    found = run_plain(
        sys.executable, "-m", "fsdp_doctor", "diagnose", folder, "--format", "json", "--output", answer
    )
    told = json.loads(answer.read_text())["data"]
    assert told["culprit_ranks"] == [1], (done.stderr, found.stderr, told["summary"])
    if how == "raise":
        assert "bad sample" in told["cause"]["title"]
    else:
        assert any("train.py" in p.read_text() for p in folder.glob("**/stacks/rank_1.*"))
