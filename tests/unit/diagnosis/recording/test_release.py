"""Which torch a command will run with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fsdp_doctor.diagnosis.recording.release import interpreter, release, version

PATH = os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin"))


def test_the_python_of_the_command() -> None:
    assert interpreter(("srun", "-N2", sys.executable, "train.py"), PATH) == sys.executable


def script(folder: Path, text: str) -> str:
    file = folder / "torchrun"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def test_the_python_of_a_launchers_first_line(tmp_path: Path) -> None:
    assert (
        interpreter((script(tmp_path, "#!/opt/venv/bin/python3.11\n"),), PATH) == "/opt/venv/bin/python3.11"
    )


def test_a_launcher_that_asks_env(tmp_path: Path) -> None:
    assert interpreter((script(tmp_path, "#!/usr/bin/env python\n"),), PATH) == str(
        Path(sys.executable).with_name("python")
    )


def test_a_long_path_is_started_by_sh(tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    assert interpreter((script(tmp_path, "#!/bin/sh\n'''exec' x\n"),), PATH) == str(tmp_path / "python")


def test_a_command_without_python() -> None:
    assert interpreter(("make", "train"), PATH) is None


def test_the_version_is_asked_without_importing() -> None:
    found = version(sys.executable, os.environ)
    assert release(found) is not None


def test_no_torch_is_no_error(tmp_path: Path) -> None:
    assert version(str(tmp_path / "python"), {}) is None


def test_releases() -> None:
    assert release("2.13.0+cu130") == (2, 13)
    assert release("2.14.0a0+git1234") == (2, 14)
    assert release(None) is None and release("nightly") is None
