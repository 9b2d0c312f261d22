"""Logs and dumps of NCCL jobs on one H200 (torch 2.11, NCCL 2.28.9; two ranks shared the GPU): the cause and the rank.

Each folder's truth.json says what was done to the job. Where the faults left no trace, no rank may be named.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_doctor.cli.main import run

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
JOBS = sorted(p for p in (LOGS / "nccl").iterdir() if p.is_dir())


@pytest.mark.parametrize("job", JOBS, ids=lambda p: p.name)
def test_names_cause_and_rank(job: Path, tmp_path: Path) -> None:
    truth = json.loads((job / "truth.json").read_text())
    inputs = [str(p) for p in sorted(job.iterdir()) if p.name != "truth.json"]
    run(["diagnose", *inputs, "--format", "json", "--output", str(tmp_path / "answer.json")])
    answer = json.loads((tmp_path / "answer.json").read_text())
    cause = answer["data"].get("cause") or {}
    assert cause.get("code") in truth["codes"], cause
    assert answer["data"]["culprit_ranks"] == truth["culprits"]
    assert (answer["verdict"] == "fail") == (cause != {} and cause["confidence"] != "low")


def test_a_memory_fraction_is_not_blamed_on_other_processes(tmp_path: Path) -> None:
    run(["diagnose", str(LOGS / "nccl" / "memory"), "--format", "json", "--output", str(tmp_path / "a.json")])
    fixes = [f["text"] for f in json.loads((tmp_path / "a.json").read_text())["data"]["fixes"]]
    assert "memory_fraction" in fixes[0] and not any(f.startswith("End process") for f in fixes)


def test_a_report_of_this_tool_is_no_log(tmp_path: Path) -> None:
    failed = LOGS / "nccl" / "memory"
    run(["diagnose", str(failed), "--format", "json", "--output", str(tmp_path / "diagnosis.json")])
    run(["diagnose", str(tmp_path), "--format", "json", "--output", str(tmp_path / "again")])
    answer = json.loads((tmp_path / "again").read_text())
    assert answer["data"].get("cause") is None and answer["data"]["inputs"] == []
