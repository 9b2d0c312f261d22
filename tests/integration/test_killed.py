"""A doctor or a rank that is killed while torch hangs leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.ranks import clean_environment, wait_for

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]
HANGS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
COMMAND = [sys.executable, "-m", "fsdp_doctor", "check", "--select", "ENV", "--deadline", "100"]


def marked(mark: str) -> dict[int, str]:
    """Processes with a word in their environment, and their commands; none that only waits to be reaped."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}" in (folder / "environ").read_text(errors="replace").split("\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "own",
    [{}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}],
    ids=["alone", "as a rank"],
)
def test_nothing_is_left_of_a_killed_doctor(tmp_path: Path, own: dict[str, str]) -> None:
    (tmp_path / "torch.py").write_text(HANGS)
    mark = uuid.uuid4().hex
    variables = clean_environment() | own | {"MARK": mark}
    variables["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{variables['PYTHONPATH']}"
    doctor = subprocess.Popen(COMMAND, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(
            lambda: any("torch_child" in c for c in marked(mark).values()), 60, lambda: "the child with torch"
        )
        os.kill(doctor.pid, signal.SIGKILL)
        doctor.wait(20)
        wait_for(lambda: not marked(mark), 20, lambda: f"the end of {marked(mark)}")
    finally:
        doctor.kill()
        doctor.wait()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
