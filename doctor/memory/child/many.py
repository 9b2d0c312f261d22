"""Many jobs in one go: torch is imported once, and each job runs in a fork of this process.

Called with a file `{"jobs": [paths], "workers": n}`; each job leaves what it would leave alone. Jobs start in
the order of the list, so that what matters most is done where time ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def main(path: str) -> None:
    """Run the jobs that the file at `path` lists."""
    from .main import main as one

    with open(path, encoding="utf-8") as file:
        listed = json.load(file)
    gc.disable()
    try:
        from . import replay, sizing  # noqa: F401 - imported once, for all forks
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    gc.freeze()  # forks share the pages of what is not looked at
    running: dict[int, str] = {}
    waiting = list(listed["jobs"])
    until = time.monotonic() + float(listed["seconds"])
    while waiting or running:
        while waiting and len(running) < listed["workers"]:
            left = until - time.monotonic()
            if left <= 0:
                waiting.clear()
                break
            job = waiting.pop(0)
            parent = os.getpid()
            pid = os.fork()
            if not pid:
                _begin(parent)
                _limit(job, left)
                one(job)
                os._exit(1)
            running[pid] = job
        if running:
            pid, _ = os.wait()
            running.pop(pid, None)
    os._exit(0)


def _begin(parent: int) -> None:
    """A fork ends with the process that it came from."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _limit(job: str, left: float) -> None:
    """Give a job the time that is left of all."""
    with open(job, encoding="utf-8") as file:
        described = json.load(file)
    described["seconds"] = max(1.0, left)
    with open(job, "w", encoding="utf-8") as file:
        json.dump(described, file)
