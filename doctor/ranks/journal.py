"""Where each rank is: stages that a rank notes while it works, and what they say of one that falls silent."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

STAGE_LIMIT = 160
BEAT = 1.0
"""Seconds between signs of life."""
QUIET = 3.5
"""Seconds without one after which a rank counts as stopped."""


class Journal:
    """The stages of this rank. The newest is sent with every sign of life; a folder keeps all of them."""

    def __init__(self, rank: int, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._stage, self._since = "start", time.monotonic()
        self._file = None if folder is None else folder / f"rank-{rank}.log"

    def mark(self, stage: str) -> None:
        """Something new begins."""
        with self._lock:
            self._stage, self._since = stage[:STAGE_LIMIT], time.monotonic()
        if self._file is not None:
            line = f"{time.time():.3f} {os.getpid()} {stage[:STAGE_LIMIT]}\n"
            with contextlib.suppress(OSError), self._file.open("a") as out:
                out.write(line)

    @property
    def stage(self) -> tuple[str, float]:
        """The newest stage and the seconds since it began."""
        with self._lock:
            return self._stage, time.monotonic() - self._since


@dataclass(slots=True)
class Trace:
    """What rank 0 has heard of one rank. Times are of rank 0's monotonic clock."""

    host: str
    address: str
    connected: float
    heard: float
    stage: str = "start"
    stage_since: float = 0.0
    closed: float | None = None
    problem: str | None = None
    """Why its report could not be used."""

    def note(self, stage: str, seconds: float, now: float) -> None:
        """A sign of life."""
        self.heard = now
        self.stage, self.stage_since = stage[:STAGE_LIMIT], now - max(seconds, 0.0)

    def remark(self, now: float) -> str:
        """What is known of this rank, which has not reported, in words."""
        where = f"on {self.host}: " if self.host else ""
        if self.problem is not None:
            return f"{where}{self.problem}"
        if self.closed is not None:
            return f"{where}its process ended during '{self.stage}'"
        if now - self.heard > QUIET:
            return (
                f"{where}no sign of life for {now - self.heard:.0f} s; its last stage was '{self.stage}': "
                "stopped, starved, or cut off"
            )
        return f"{where}still in '{self.stage}' after {now - self.stage_since:.0f} s"
