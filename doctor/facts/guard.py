"""Calls that may hang in the kernel, made in a thread that can be left behind."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

CALL_SECONDS = 2.0
"""Patience with the first call that hangs; files of /proc and /sys answer in microseconds."""
LAST_SECONDS = 0.5
AREA_PARTS = 4
"""Leading parts of a path that share the fate of a call that hung, such as /sys/class/infiniband/mlx5_0."""


class _Job(Generic[T]):
    """One call and its result."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.done = threading.Event()
        self.value: T | None = None

    def run(self) -> None:
        """Make the call; one that raises has no value."""
        try:
            self.value = self.call()
        except (OSError, ValueError):  # ValueError: a null character in a path
            self.value = None
        finally:
            self.done.set()


_Jobs = queue.SimpleQueue[Callable[[], None] | None]
"""Calls to make; None ends the thread."""


class Guard:
    """Runs calls one after another in a helper thread. After a hang its area is not asked again."""

    def __init__(self, until: float, patience: float = CALL_SECONDS) -> None:
        """From the time `until` (of `time.monotonic`) on, a call gets `LAST_SECONDS` only."""
        self._until, self._patience = until, patience
        self._jobs = _Jobs()
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()
        self._hung: set[str] = set()

    def call(self, path: str, call: Callable[[], T]) -> T | None:
        """The result of a call about a path; None if it raised, hung or hung before."""
        with self._lock:
            if self.hung(path):
                return None
            job = _Job(call)
            self._start()
            self._jobs.put(job.run)
            left = max(LAST_SECONDS, self._until - time.monotonic())
            if job.done.wait(min(self._patience / (1 + len(self._hung)), left)):
                return job.value
            self._hung.add(area(path))
            self._leave()
            return None

    def close(self) -> None:
        """End the helper thread. Another call starts a new one."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        self._jobs.put(None)
        self._worker, self._jobs = None, _Jobs()

    def hung(self, path: str) -> bool:
        """Whether a call about the neighbourhood of a path has hung."""
        return area(path) in self._hung

    def _start(self) -> None:
        if self._worker is None:
            # A daemon: the end of this process does not wait for a call that never returns.
            self._worker = threading.Thread(target=_work, args=(self._jobs,), name="guard", daemon=True)
            self._worker.start()


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()


def area(path: str) -> str:
    """The leading parts of a path, with one process like another: /proc/7/cmdline is /proc/N/cmdline."""
    parts = [p for p in path.split("/") if p]
    if parts[:1] == ["proc"] and len(parts) > 1 and parts[1].isdigit():
        parts[1] = "N"
    return "/".join(parts[:AREA_PARTS])
