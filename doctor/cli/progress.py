"""What the command waits for: noted as the source is asked, shown on standard error to a person only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from fsdp_doctor.cli.output import is_terminal

if TYPE_CHECKING:
    from fsdp_doctor.facts.source import Source

PATIENCE = 3.0
"""Seconds after which a wait is remarked on."""
TICK = 0.1
WAITS = {
    "nvml": "NVML",
    "stack": "the Python environment (import torch)",
    "net": "the network interfaces and names",
    "statvfs": "the file systems",
    "path_facts": "the checkpoint's file system",
    "kernel_log": "the kernel log",
    "units": "systemd",
    "env": "the environment",
}


class Waiting:
    """The answer that is being waited for, and since when (monotonic seconds)."""

    def __init__(self, noted: Callable[[str], None] | None = None) -> None:
        """`noted` hears of every wait, in words."""
        self.what: str | None = None
        self.since = time.monotonic()
        self._noted = noted

    def note(self, what: str | None) -> None:
        """A wait began, or with None ended."""
        self.what, self.since = what, time.monotonic()
        if self._noted is not None:
            self._noted(f"waiting for {what}" if what is not None else "judging")

    def words(self) -> str:
        """One line for a person."""
        if self.what is None:
            return "judging"
        seconds = time.monotonic() - self.since
        return (
            f"waiting for {self.what}"
            if seconds < PATIENCE
            else f"still waiting for {self.what} ({seconds:.0f} s)"
        )


class _Watched:
    """A source that notes which of its slow answers is being waited for."""

    def __init__(self, source: Source, waiting: Waiting) -> None:
        self._source, self._waiting = source, waiting

    def __getattr__(self, name: str) -> object:
        asked = getattr(self._source, name)
        what = WAITS.get(name)
        if what is None:
            return asked

        def answer(*arguments: object) -> object:
            self._waiting.note(what)
            try:
                return asked(*arguments)
            finally:
                self._waiting.note(None)

        return answer


def watched(source: Source, waiting: Waiting) -> Source:
    """The same source, with its waits noted."""
    return cast("Source", _Watched(source, waiting))


def attend(done: Callable[[float], bool], waiting: Waiting, until: float | None, quiet: bool = False) -> bool:
    """Wait until `done(seconds)` is true or the time `until` (monotonic) comes; whether it was done.

    A person at a terminal sees what is waited for, unless `quiet`; nobody else sees anything.
    """
    if quiet or not is_terminal(sys.stderr):
        return _wait(done, until, lambda: None, None)
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status("collecting facts") as status:
        return _wait(done, until, lambda: status.update(escape(waiting.words())), TICK)


def shown(text: str) -> AbstractContextManager[object]:
    """Show a person at a terminal what is done in the meantime; nobody else sees anything."""
    if not is_terminal(sys.stderr):
        return nullcontext()
    from rich.console import Console
    from rich.markup import escape

    return Console(stderr=True).status(escape(text))


def _wait(
    done: Callable[[float], bool], until: float | None, show: Callable[[], None], tick: float | None
) -> bool:
    while True:
        left = float("inf") if until is None else until - time.monotonic()
        if done(max(0.0, min(left, tick or 3600.0))):
            return True
        if left <= 0:
            return False
        show()
