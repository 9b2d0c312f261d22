"""How busy the machine is while its ranks measure: what all its processes took of its cores, and this one."""

from __future__ import annotations

import os
import time

TICKS = 100.0
"""Of /proc/stat in a second where the system does not say."""
IDLE = (3, 4)
"""Columns of /proc/stat in which no process had the core; the columns after `LAST` are part of others."""
LAST = 8
SCHEDULE = "/proc/thread-self/schedstat"


class Load:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._began, self._machine, self._own = time.monotonic(), _taken(), _own()

    def so_far(self) -> dict[str, object] | None:
        """As `fsdp_doctor.subjects.probe.MachineLoad`; None where the kernel does not say."""
        now = _taken()
        if self._machine is None or now is None:
            return None
        return {
            "machine": _boot(),
            "cores": now[0],
            "seconds": time.monotonic() - self._began,
            "taken_seconds": max(now[1] - self._machine[1], 0.0),
            "own_seconds": _own() - self._own,
        }


def waited() -> float | None:
    """Seconds that this thread was ready to run and another had the core; None where it is not counted."""
    try:
        with open(SCHEDULE) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _taken() -> tuple[int, float] | None:
    """Cores of the machine, and seconds of them that were taken, stolen ones included."""
    try:
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        values = [int(v) for v in lines[0][1 : 1 + LAST]]
        ticks = float(os.sysconf("SC_CLK_TCK")) or TICKS
    except (OSError, ValueError, IndexError):
        return None
    taken = sum(v for i, v in enumerate(values) if i not in IDLE)
    return max(len(lines) - 1, 1), taken / ticks


def _own() -> float:
    return time.process_time()


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename
