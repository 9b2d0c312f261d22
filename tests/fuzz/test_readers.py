"""A short run of the fuzz targets, in a process of limited memory; `make fuzz` runs them longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

ROUNDS = 100


@pytest.mark.timeout(240)
def test_no_reader_raises() -> None:
    words = [sys.executable, "-m", "tests.fuzz", "--rounds", str(ROUNDS), "--seconds", "5"]
    done = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.count(" inputs, 0 failed") == len(TARGETS)
