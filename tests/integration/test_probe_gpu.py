"""The probe on a real GPU: one rank, and two that share it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def probe(*arguments: str) -> tuple[dict[str, object], int]:
    command = [sys.executable, "-m", "fsdp_doctor", "probe", "--backend", "nccl", "--format", "json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=150, check=False)
    return json.loads(done.stdout), done.returncode


def test_one_rank() -> None:
    told, code = probe("--nproc", "1", "--profile", "quick")
    data = told["data"]
    assert isinstance(data, dict)
    (rank,) = data["ranks"]
    assert code == 0, [r for r in told["results"] if r["status"] == "fail"]  # type: ignore[attr-defined]
    assert (rank["stage"], rank["error"]) == ("done", None) and rank["gpu_uuid"].startswith("GPU-")
    assert rank["work_ms"] > 0 and {c["direction"] for c in rank["copies"]} == {"h2d", "d2h"}
    assert all(f["correct"] for sizes in data["ops"].values() for f in sizes.values())
    assert data["counters"]["0"]["read"] > 0
    assert data["nccl"] and data["transports"]["version"] == data["nccl"]


def test_two_ranks_on_one_gpu_are_named() -> None:
    ranks = torch.cuda.device_count() + 1
    told, code = probe("--nproc", str(ranks), "--profile", "quick", "--force")
    failed = [r for r in told["results"] if r["status"] == "fail"]  # type: ignore[attr-defined]
    assert code == 1 and [r["code"] for r in failed] == ["PRB005"]
    assert failed[0]["subject"]["rank"] == [0, ranks - 1]
