"""A child that does not outlive the process that started it, however that process ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def bound_to(parent: int) -> Callable[[], None] | None:
    """What a child of `parent` does before its program starts; None where the system has no such bond.

    The kernel sends the signal when the thread that forked has ended, so that thread must stay for as long
    as the child. Another thread may hold any lock of Python's at the fork: between that and exec only C
    functions are called that were loaded before, without letting go of the interpreter.
    """
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl, number, getppid, leave = ctypes.PyDLL(None).prctl, signal.SIGKILL.value, os.getppid, os._exit

    def bind() -> None:
        prctl(SET_DEATH_SIGNAL, number, 0, 0, 0)
        if getppid() != parent:  # it ended before the bond was there
            leave(1)

    return bind
