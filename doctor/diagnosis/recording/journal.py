"""A line of JSON per beat and event: what the ranks of this host looked like while the command ran."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

SIZE_LIMIT = 64 << 20
"""Bytes; a beat of 8 ranks has 700, so that this is a week."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One rank's process: processor seconds so far, resident bytes, the kernel's state."""

    rank: int | None
    pid: int
    state: str | None
    cpu: float | None
    rss: int | None


class Journal:
    """An append-only file. A disk that is full costs the journal and nothing else."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO | None = None
        self._size = 0
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        except OSError:
            return

    def beat(self, output: int, quiet: float, beats: Sequence[Beat]) -> None:
        """Where the ranks are now; `output` bytes so far, `quiet` seconds since the last."""
        ranks = [{"rank": b.rank, "pid": b.pid, "state": b.state, "cpu": b.cpu, "rss": b.rss} for b in beats]
        self._write({"event": "beat", "output": output, "quiet": round(quiet, 1), "ranks": ranks})

    def event(self, name: str, **more: object) -> None:
        """Something happened."""
        self._write({"event": name, **more})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: dict[str, object]) -> None:
        if self._file is None or self._size > SIZE_LIMIT:
            return
        line = json.dumps({"time": round(time.time(), 3), "monotonic": round(time.monotonic(), 3), **entry})
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except (OSError, ValueError):
            self._file = None
            return
        self._size += len(line)


def beat_of(rank: int | None, pid: int) -> Beat:
    """A process as the kernel shows it now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        used = (int(fields[11]) + int(fields[12])) / ticks
        return Beat(rank, pid, fields[0].decode(), round(used, 2), int(fields[21]) * page)
    except (OSError, IndexError, ValueError):
        return Beat(rank, pid, None, None, None)
