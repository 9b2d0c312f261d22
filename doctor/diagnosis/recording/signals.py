"""Signals that reach `run` are the command's: each is passed on, but for those that it has got already."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable

NAMES = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
FORWARDED = tuple(signal.Signals[n] for n in NAMES if n in signal.Signals.__members__)
"""SIGTSTP and SIGCONT are not among them: the shell sends those to the whole group."""
POLL = 1.0


class Forwarding:
    """From `start` to `stop` the signals are blocked here, and a thread takes them one by one.

    The command is in the same process group, so that it may read the terminal. Ctrl-C reaches it from the
    kernel, and must not come a second time; what another process sends to `run` alone has to be passed on.
    """

    def __init__(self, pid: int, heard: Callable[[signal.Signals, bool], None]) -> None:
        """`heard` is told of each signal, and whether it was passed on."""
        self._pid, self._heard = pid, heard
        self._going = True
        self._before: set[signal.Signals | int] = set()

    def start(self) -> None:
        """Take signals from now on. Threads that are started later have them blocked too."""
        self._before = set(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED))
        threading.Thread(target=self._serve, name="signals", daemon=True).start()

    def stop(self) -> None:
        """Leave them to Python again."""
        self._going = False
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def _serve(self) -> None:
        while self._going:
            found = signal.sigtimedwait(FORWARDED, POLL)
            if found is None or not self._going:
                continue
            number = signal.Signals(found.si_signo)
            by_kernel = found.si_code > 0
            if not by_kernel:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._pid, number)
            self._heard(number, not by_kernel)
