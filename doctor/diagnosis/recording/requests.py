"""Ask the ranks of this host for what only they can tell, before a watchdog ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

PIPE = "pipe_"
"""torch's own: TORCH_NCCL_DEBUG_INFO_PIPE_FILE, the rank and `.pipe`."""
ASK = "ask_"
"""The hook's, with a process id."""
SECONDS = 5.0
"""For ranks to write what they were asked for."""
POLL = 0.2


def ask_for_recorders(local: Path, flight: Path) -> tuple[Path, ...]:
    """Ask every rank for its Flight Recorder; the files that came within `SECONDS`."""
    before = _names(flight)
    asked = sum(_write(p) for p in _pipes(local))
    if not asked:
        return ()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and len(_names(flight) - before) < asked:
        time.sleep(POLL)
    return tuple(flight / name.rpartition(" ")[0] for name in sorted(_names(flight) - before))


def _names(folder: Path) -> set[str]:
    """Names and times of whole files: one that was written anew counts."""
    try:
        found = [e for e in os.scandir(folder) if not e.name.endswith(".part")]
        return {f"{e.name} {e.stat().st_mtime_ns}" for e in found}
    except OSError:
        return set()


def _pipes(local: Path) -> Iterable[Path]:
    return [*local.glob(f"{PIPE}*.pipe"), *local.glob(f"{ASK}*")]


def _write(pipe: Path) -> bool:
    """One byte into a named pipe; without a reader there is nobody to ask."""
    try:
        number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.write(number, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(number)
