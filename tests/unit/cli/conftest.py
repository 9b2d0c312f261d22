"""Recordings on disk, made once, and the command run in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures import machines
from fsdp_doctor.cli.main import run

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Doctor = Callable[..., Done]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command in this process."""

    def call(*argv: object) -> Done:
        capsys.readouterr()
        status = run([str(a) for a in argv])
        out, err = capsys.readouterr()
        return Done(status, out, err)

    return call


def start(*argv: object, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "fsdp_doctor", *map(str, argv)]
    full = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.Popen(command, env=full, stdin=subprocess.DEVNULL, **more)


def finish(
    *argv: object, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """The same, to its end."""
    child = start(*argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    out, err = child.communicate(timeout=60)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A laptop, on which nothing fails."""
    folder = tmp_path_factory.mktemp("healthy") / "recording"
    machines.laptop().write(folder)
    return folder


@pytest.fixture(scope="session")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node whose GPU 5 has a row that waits for a reset."""
    machine = machines.h100()
    machine.gpu(5)["nvmlDeviceGetRemappedRows"] = [0, 1, 1, 0]
    folder = tmp_path_factory.mktemp("sick") / "recording"
    machine.write(folder)
    return folder


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks on two nodes; on node-b /dev/shm is too small."""
    two = machines.two_nodes()
    for machine in two.ranks[2:]:
        machine.space("/dev/shm", 64 << 20, 64 << 20)
    folder = tmp_path_factory.mktemp("job") / "recording"
    two.write(folder)
    return folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration and no launcher's variables are in the way."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
