"""Ranks as real processes: together, late, killed, stopped, absent, with another token, under torchrun."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ranks import (
    BROKEN_TORCH,
    HANGING_TORCH,
    ROOT,
    Ranks,
    clean_environment,
    free_port,
    results,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
HAS_TORCH = importlib.util.find_spec("torch") is not None
CHECK = ("check", "--format", "json")


def test_four_ranks_one_with_a_broken_torch(tmp_path: Path) -> None:
    with Ranks(tmp_path, 4) as ranks:
        for rank in (3, 2, 1, 0):
            torch = {"PYTHONPATH": ranks.torch(BROKEN_TORCH)} if rank == 3 else {}
            ranks.start(rank, *CHECK, "--deadline", "60", LOCAL_WORLD_SIZE="4", LOCAL_RANK=str(rank), **torch)
        first = ranks.end(0)
        report = first.report
        assert report["data"]["ranks"] == {"world_size": 4, "recorded": [0, 1, 2, 3], "missing": []}  # type: ignore[index]
        assert [r["status"] for r in results(report, "RNK001")] == ["pass"]
        assert [r["status"] for r in results(report, "RNK040")] == ["pass"]
        assert [r["status"] for r in results(report, "RNK050")] == ["pass"]
        if HAS_TORCH:
            (broken,) = results(report, "RNK007")
            assert broken["status"] == "fail" and "libcudart.so.13" in str(broken["found"])
            assert broken["subject"]["rank"] == 3  # type: ignore[index]
        shared = [r for r in results(report, "HST001") if r["status"] == "pass"]
        assert all(r["subject"]["rank"] == [0, 1, 2, 3] for r in shared)  # type: ignore[index]
        for rank in (1, 2, 3):
            other = ranks.end(rank)
            assert (other.code, other.out, other.err) == (first.code, "", ""), rank


def test_ranks_that_are_late_killed_stopped_or_never_start(tmp_path: Path) -> None:
    with Ranks(tmp_path, 6) as ranks:
        hung = {"PYTHONPATH": ranks.torch(HANGING_TORCH)}
        deadline = 35
        for rank in (0, 1, 2, 3):
            ranks.start(rank, *CHECK, "--deadline", str(deadline), **(hung if rank in (2, 3) else {}))
        for rank in (2, 3):
            ranks.until_stage(rank, "waiting for the Python environment")
            wait_for(lambda r=rank: "looking for rank 0" in ranks.stages(r), 30, lambda: "a link")  # type: ignore[misc]
        ranks.start(5, *CHECK, "--deadline", str(deadline))
        ranks.until_stage(5, "waiting for the other ranks")
        ranks.processes[2].send_signal(signal.SIGSTOP)
        ranks.processes[3].send_signal(signal.SIGKILL)
        first = ranks.end(0)
        assert first.code == 1
        report = first.report
        (missing,) = [r for r in results(report, "RNK001") if r["status"] == "fail"]
        assert missing["subject"]["rank"] == [2, 3, 4]  # type: ignore[index]
        said = str(missing["found"])
        assert "3 of 6 ranks reported" in said
        assert "rank 2 on " in said and "no sign of life" in said
        assert "rank 3 on " in said and "its process ended during 'waiting for the Python environment" in said
        assert float(str(report["seconds"])) < deadline + 5
        for rank in (1, 5):
            other = ranks.end(rank)
            assert (other.code, other.out) == (1, ""), other.err


def test_another_token_is_refused_and_rank_0_that_never_answers_is_named(tmp_path: Path) -> None:
    with Ranks(tmp_path, 3) as ranks:
        ranks.start(1, *CHECK, "--deadline", "14", "--token", "wrong")
        ranks.start(2, *CHECK, "--deadline", "30", "--token", "right")
        ranks.start(0, *CHECK, "--deadline", "30", "--token", "right", "--wait", "12")
        stranger = ranks.end(1)
        assert stranger.code == 3 and stranger.out == ""
        assert stranger.err.count("\n") == 1
        assert f"rank 0 did not answer at 127.0.0.1 (MASTER_ADDR): port {ranks.port}:" in stranger.err
        first, friend = ranks.end(0), ranks.end(2)
        assert (first.code, friend.code) == (1, 1)
        (missing,) = results(first.report, "RNK001")
        assert missing["subject"]["rank"] == 1  # type: ignore[index]
        notes = first.report["data"]["notes"]  # type: ignore[index]
        assert any("refused: the secrets differ: another --token" in n for n in notes), notes


def test_a_job_is_recorded_and_judged_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "job.zip"
    with Ranks(tmp_path, 2) as ranks:
        for rank in (1, 0):
            ranks.start(rank, "record", "--format", "json", "--deadline", "60", str(out))
        first, second = ranks.end(0), ranks.end(1)
        assert (first.code, second.code, second.out) == (0, 0, ""), first.err + second.err
    judged = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", "check", "--from", str(out), "--format", "json", "--select", "RNK"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    report = json.loads(judged.stdout)
    assert report["data"]["ranks"]["recorded"] == [0, 1]
    assert [r["status"] for r in results(report, "RNK001")] == ["pass"]
    assert [r["status"] for r in results(report, "RNK040")] == ["pass"]


def torchrun(tmp_path: Path, *words: str, **env: str) -> subprocess.Popen[bytes]:
    port = str(free_port())
    launch = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        port,
    )
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, *launch, "-m", "fsdp_doctor", *words],
            cwd=ROOT,
            env=clean_environment() | env,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End torchrun and whatever it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@pytest.mark.skipif(not HAS_TORCH, reason="torchrun comes with torch")
def test_under_torchrun_whose_own_store_holds_the_port(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    launcher = torchrun(
        tmp_path, *CHECK, "--select", "RNK,ENV010", "--deadline", "60", "--output", str(report_file)
    )
    try:
        assert launcher.wait(150) == 0, (tmp_path / "err").read_text()
    finally:
        end_all(launcher)
    report = json.loads(report_file.read_text())
    assert report["data"]["ranks"]["recorded"] == [0, 1]
    assert [r["status"] for r in results(report, "RNK050")] == ["pass"]


@pytest.mark.skipif(not HAS_TORCH, reason="torchrun comes with torch")
def test_under_torchrun_the_killed_rank_is_named_and_not_the_others(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    report_file = tmp_path / "report.json"
    launcher = torchrun(
        tmp_path, *CHECK, "--deadline", "100", "--output", str(report_file),
        FSDP_DOCTOR_JOURNAL=str(tmp_path / "journal"),
    )  # fmt: skip
    try:
        log = tmp_path / "journal" / "rank-1.log"
        wait_for(lambda: log.exists() and "looking for rank 0" in log.read_text(), 90, lambda: "rank 1")
        # Rank 0 must have begun to listen, or there is nobody to name anybody.
        wait_for((tmp_path / "journal" / "rank-0.log").exists, 60, lambda: "rank 0")
        os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
        began = time.monotonic()
        assert launcher.wait(100) != 0
        assert time.monotonic() - began < 60
    finally:
        end_all(launcher)
    report = json.loads(report_file.read_text())
    (missing,) = [r for r in results(report, "RNK001") if r["status"] == "fail"]
    assert missing["subject"]["rank"] == 1
