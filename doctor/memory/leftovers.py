"""What the user's code started in a replay, and what has left its process group since: it is ended too."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = "FSDP_DOCTOR_REPLAY"
"""An environment variable of a replay and of all that it starts: its folder, which no other has."""


def marked(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment for what runs in a folder."""
    return {**environment, MARK: str(folder)}


def end(folder: Path) -> int:
    """End what bears the mark of a folder, once its replay has ended; how many there were. Linux only."""
    wanted, found = f"{MARK}={folder}\0".encode(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes() + b"\0":
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
    return found
