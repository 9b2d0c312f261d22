"""A fake NVML library, built from C where a compiler is, so that ctypes and the loader are the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def fake_nvml(folder: Path) -> dict[str, str]:
    """Build the library in a folder; the environment in which the loader finds it first."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C compiler: the fake NVML library cannot be built")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE)],
        check=True,
        timeout=60,
    )
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}
