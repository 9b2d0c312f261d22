"""Exit codes that stand for a signal.

Numbers are those of Linux, where the jobs ran, whatever system reads their logs.
"""

from __future__ import annotations

SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM = 4, 6, 7, 8, 9, 11, 15
CRASHES = {SIGILL: "SIGILL", SIGBUS: "SIGBUS", SIGFPE: "SIGFPE", SIGSEGV: "SIGSEGV"}
"""Signals by which the kernel ends a process for what its native code did."""
BARE = (SIGKILL, SIGTERM)
"""Signals that some launchers print as their number alone; no program ends with such a code by itself."""
SHELL = 128


def signal_of(code: int | None) -> int | None:
    """The signal's number: Python negates it, a shell adds 128. None for a code that a program chose."""
    if code is None:
        return None
    if code < 0:
        return -code
    if SHELL < code <= SHELL + 64:
        return code - SHELL
    return code if code in BARE else None
