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
SECONDS = 12.0
"""For ranks to write what they were asked for: the hook writes at once, and again when it has the stacks."""
WRITES = 2
POLL = 0.2


def ask_for_recorders(local: Path, flight: Path) -> tuple[Path, ...]:
    """Ask every rank for its Flight Recorder; the files that came within `SECONDS`."""
    seen = _names(flight)
    asked = sum(_write(p) for p in _pipes(local))
    if not asked:
        return ()
    writes: dict[str, int] = {}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not (len(writes) >= asked and min(writes.values()) >= WRITES):
        time.sleep(POLL)
        now = _names(flight)
        for name in {n for n, when in now.items() if seen.get(n) != when}:
            writes[name] = writes.get(name, 0) + 1
        seen = now
    return tuple(flight / name for name in sorted(writes))


def _names(folder: Path) -> dict[str, int]:
    """Whole files and when they were written."""
    try:
        return {e.name: e.stat().st_mtime_ns for e in os.scandir(folder) if not e.name.endswith(".part")}
    except OSError:
        return {}


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
