"""Stacks of a process that `fsdp-doctor run` started, from inside: no rights are needed for it."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import Thread

OFFSET = 9
"""Of the signal that the hook listens to, above SIGRTMIN."""
RUN = "FSDP_DOCTOR_RUN"
SECONDS = 2.0
POLL = 0.05
SETTLED = 0.15
"""Seconds without growth after which a dump is whole."""
SIZE_LIMIT = 4 << 20
THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')


def listens(pid: int, status: str | None = None) -> bool:
    """Whether a process catches the signal: one that does not would be ended by it."""
    number = signal_number()
    if number is None:
        return False
    try:
        text = Path(f"/proc/{pid}/status").read_text() if status is None else status
        caught = next(line for line in text.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def signal_number() -> int | None:
    """The signal; None on systems without real-time signals."""
    first = getattr(signal, "SIGRTMIN", None)
    return None if first is None else int(first) + OFFSET


def ask(pid: int, folder: Path) -> tuple[Thread, ...]:
    """Ask a process for its stacks and read what it wrote; nothing where it does not answer."""
    number = signal_number()
    file = folder / "stacks" / f"faulthandler-{os.uname().nodename}-{pid}.txt"
    if number is None or not listens(pid) or not file.exists():
        return ()
    before = file.stat().st_size
    try:
        os.kill(pid, number)
    except OSError:
        return ()
    until, size, grown = time.monotonic() + SECONDS, before, time.monotonic()
    while time.monotonic() < until:
        time.sleep(POLL)
        now = file.stat().st_size
        if now != size:
            size, grown = now, time.monotonic()
        elif size > before and time.monotonic() - grown > SETTLED:
            break
    with open(file, "rb") as stream:
        stream.seek(before)
        return parse(stream.read(SIZE_LIMIT).decode("utf-8", "replace"))


def parse(text: str) -> tuple[Thread, ...]:
    """The threads of one dump; faulthandler writes the main thread last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        head, frame = THREAD.match(line), FRAME.match(line)
        if head is not None:
            threads.append((head["name"] or "", []))
        elif frame is not None and threads:
            number = int(frame["line"]) if frame["line"].isdigit() else None
            threads[-1][1].append(Frame(frame["function"], frame["file"], number))
    last = len(threads) - 1
    return tuple(
        Thread(tuple(reversed(frames)), name, main=i == last) for i, (name, frames) in enumerate(threads)
    )
