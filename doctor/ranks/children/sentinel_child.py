"""Keeps one sentinel file in a folder for as long as its parent lives, and says which others it sees.

    sentinel_child.py SECONDS FOLDER [NAME]

Writes FOLDER/NAME if a name is given, prints {"written": true} or {"error": …}, then answers each line of
standard input, a JSON array of names, with the array of those that are there. At the end of its input, at
a signal or after SECONDS it removes its file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time


def main(argv: list[str]) -> int:
    """Serve until the input ends."""
    seconds, folder = float(argv[1]), nearest(argv[2])
    name = argv[3] if len(argv) > 3 else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path = None if name is None else os.path.join(folder, name)
    try:
        _say(_write(path))
        _answer(folder, time.monotonic() + seconds)
    finally:
        if path is not None and _own:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return 0


_own: list[str] = []


def nearest(folder: str) -> str:
    """The folder, or the nearest one above it that is there: a run makes its checkpoint folder itself."""
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _write(path: str | None) -> dict[str, object]:
    if path is None:
        return {"written": False}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _own.append(path)
        try:
            os.write(handle, b"fsdp-doctor checks whether all hosts see this file; it may be deleted\n")
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        return {"written": False, "error": error.strerror or str(error)}
    return {"written": True}


def _answer(folder: str, until: float) -> None:
    pending = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([0], [], [], left)[0]:
            return
        data = os.read(0, 65536)
        if not data:
            return
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            names = [n for n in json.loads(line) if isinstance(n, str) and "/" not in n]
            with contextlib.suppress(OSError):
                os.listdir(folder)  # makes a client of NFS ask its server again
            _say({"seen": [n for n in names if os.path.lexists(os.path.join(folder, n))]})


def _say(answer: dict[str, object]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
