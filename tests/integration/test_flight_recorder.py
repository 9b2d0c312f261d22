"""torch's own Flight Recorder on gloo ranks of this machine, judged end to end by `diagnose DIR`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.dumps.real import FAULTS

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
KINDS = ("skipped",)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds in one launch: torch is imported once, and each rank is a fork."""
    out = tmp_path_factory.mktemp("dumps")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_FR_BUFFER_SIZE": "2000"}
    words = [sys.executable, "-m", "fixtures.dumps.real", str(out), *KINDS]
    subprocess.run(words, cwd=ROOT, env=env, check=True, timeout=120, capture_output=True)
    return out


@pytest.mark.parametrize("moment", ["hang", "failed", "hang_json"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_the_planted_rank(dumps: Path, kind: str, moment: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    words = ["diagnose", str(dumps / kind / moment), "--format", "json", "--output", str(answer)]
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = json.loads(answer.read_text())["data"]
    assert done.returncode == 1, told["summary"]
    assert tuple(told["culprit_ranks"]) == FAULTS[kind][2], told["summary"]
    assert told["world_size"] == FAULTS[kind][0]
