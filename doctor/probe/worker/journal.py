"""What a rank leaves behind, readable at any moment and after any end.

Four files per rank in the job's folder: `rank-N.jsonl` (one JSON object per line), `rank-N.progress` (four
integers), `rank-N.stack` (Python stacks of a rank that was asked or that ran out of time) and `rank-N.log`
(what it wrote to standard output and standard error).
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import signal
import struct
import sys
import time
from typing import Any

PROGRESS = struct.Struct("=QQdd")
"""Steps entered, steps left, and the time of each (monotonic seconds)."""
PARENT = "FSDP_DOCTOR_PROBE_PARENT"
"""Variable with the process that a rank must not outlive."""
SET_DEATH_SIGNAL = 1
DIGITS = 9


class Progress:
    """Counts the steps in which ranks wait for each other. Costs under a microsecond, survives a SIGKILL."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.write(bytes(PROGRESS.size))
            file.flush()
            self._map = mmap.mmap(file.fileno(), PROGRESS.size)
        self._entered = self._left = 0
        self._left_at = 0.0

    def enter(self) -> None:
        """The rank is about to wait for others."""
        self._entered += 1
        self._write(time.monotonic())

    def leave(self) -> None:
        """It waits no longer."""
        self._left = self._entered
        self._left_at = time.monotonic()
        self._write(self._left_at)

    def _write(self, now: float) -> None:
        PROGRESS.pack_into(self._map, 0, self._entered, self._left, now, self._left_at)


class Journal:
    """The files of one rank."""

    def __init__(self, folder: str, rank: int, seconds: float) -> None:
        base = os.path.join(folder, f"rank-{rank}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(base + ".jsonl", flags, 0o600)
        self.lines: list[str] = []
        self.progress = Progress(base + ".progress")
        self._stack = open(base + ".stack", "ab")  # noqa: SIM115 - open until the end
        self.note(pid=os.getpid())
        self.stage("spawn")
        log = os.open(base + ".log", flags, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        self._guard(seconds)

    def _guard(self, seconds: float) -> None:
        """End with the parent, end at the deadline, and show where the rank is when asked."""
        faulthandler.enable(self._stack)
        # The watchdog is a thread of C code: it works when Python itself is stuck.
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stack)
        if hasattr(faulthandler, "register"):
            # A launcher ends the ranks that are left when one has failed. These must find out for themselves
            # what they lost; whoever started the probe kills them a moment later.
            for number in (signal.SIGTERM, signal.SIGUSR1):
                faulthandler.register(number, file=self._stack, all_threads=False)
        if sys.platform.startswith("linux"):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
            if str(os.getppid()) != os.environ.get(PARENT, str(os.getppid())):
                os._exit(1)

    def stage(self, name: str, detail: str = "") -> None:
        """The rank enters a stage, or does something else within it."""
        self.write({"stage": name, "detail": detail, "at": time.monotonic()})

    def note(self, **fields: object) -> None:
        """Fields of the rank's measurement."""
        self.write({"set": fields})

    def add(self, kind: str, entry: dict[str, Any]) -> None:
        """One entry of a list of the rank's measurement: work, copies, collectives, pairs."""
        self.write({"add": kind, "entry": {k: _rounded(v) for k, v in entry.items()}})

    def error(self, error: BaseException) -> None:
        """The exception that ends the rank."""
        self.write({"error": {"kind": type(error).__name__, "text": str(error)}, "at": time.monotonic()})

    def write(self, value: dict[str, Any]) -> None:
        """One line, whole and at once."""
        line = json.dumps(value, separators=(",", ":"))
        self.lines.append(line)
        data = (line + "\n").encode()
        while data:
            data = data[os.write(self._file, data) :]


def _rounded(value: object) -> object:
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [round(v, DIGITS) for v in value]
    return value
