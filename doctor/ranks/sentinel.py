"""One file per host in the checkpoint folder: what each host sees of the others' tells whether it is shared.

A child does it: the folder may lie on a file server that hangs, and the file goes away with this process
even where it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).absolute().parent / "children" / "sentinel_child.py"
LIFE = 120.0
"""Seconds after which a sentinel goes away whatever happens."""
TRIES = 3
PAUSE = 0.5
"""Seconds between looks: attribute caches of network file systems lag behind."""


class Sentinel:
    """A host's file in the checkpoint folder, and eyes for the others'. Close it when done."""

    def __init__(self, folder: str, name: str | None) -> None:
        """`name` is the file to write; None only looks. Failure to start is in `error`."""
        self.error: str | None = None
        self._pending = b""
        argv = [sys.executable, "-I", "-S", str(SCRIPT), str(LIFE), folder, *([name] if name else [])]
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._child, self.error = None, str(error)

    def written(self, until: float) -> bool:
        """Whether the file was written by then; else `error` says why not."""
        answer = self._line(until)
        if answer is None:
            self.error = self.error or "the file system of the checkpoint folder does not answer"
            return False
        error = answer.get("error")
        self.error = str(error) if error else None
        return answer.get("written") is True

    def seen(self, names: Sequence[str], until: float) -> tuple[str, ...] | None:
        """Those of the files that this host sees by then; None where the file system does not answer."""
        found: tuple[str, ...] | None = None
        for attempt in range(TRIES):
            if attempt:
                time.sleep(max(0.0, min(PAUSE, until - time.monotonic())))
            if not self._write(json.dumps(list(names)).encode() + b"\n"):
                return found
            answer = self._line(until)
            seen = answer.get("seen") if answer is not None else None
            if not isinstance(seen, list):
                return found
            found = tuple(n for n in seen if isinstance(n, str))
            if len(found) == len(names):
                break
        return found

    def close(self) -> None:
        """Remove the file. A child that the kernel does not let go is left behind."""
        if self._child is None:
            return
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._child.wait(2.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.5)
        self._child = None

    def _write(self, line: bytes) -> bool:
        if self._child is None or self._child.stdin is None:
            return False
        try:
            self._child.stdin.write(line)
        except OSError:
            return False
        return True

    def _line(self, until: float) -> dict[str, object] | None:
        if self._child is None or self._child.stdout is None:
            return None
        pipe = self._child.stdout.fileno()
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            data = os.read(pipe, 65536)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else None
