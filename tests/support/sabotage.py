"""A rank with a fault: `start.py` of the probe's worker, with one part replaced as SABOTAGE says.

SABOTAGE is `kind:rank[:number]`. The probe runs this script in place of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = Path(__file__).parents[2] / "doctor" / "probe" / "worker" / "start.py"
spec = importlib.util.spec_from_file_location("start", START)
assert spec is not None and spec.loader is not None
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)

kind, rank, *rest = os.environ.get("SABOTAGE", "none:-1").split(":")
number = float(rest[0]) if rest else 0.0
mine = os.environ["RANK"] == rank
if mine and kind == "late-start":
    time.sleep(number)
if mine and kind == "never":
    os._exit(7)
main, journal, patterns, collectives = (start.load(n) for n in ("main", "journal", "patterns", "collectives"))


class Steps:
    """Runs an action whenever the rank is about to wait for others; with `at`, only that time."""

    def __init__(self, action: Callable[[], object], at: int | None = None) -> None:
        entered, self.count = journal.Progress.enter, 0

        def enter(progress: Any) -> None:
            self.count += 1
            if at is None or self.count == at:
                action()
            entered(progress)

        journal.Progress.enter = enter


def fail() -> None:
    raise ValueError("the sabotage raised this")


STARVE = """
import os, signal, sys, time
rank, share = int(sys.argv[1]), float(sys.argv[2])
while os.getppid() == rank:
    os.kill(rank, signal.SIGSTOP)
    time.sleep(0.02 * share)
    os.kill(rank, signal.SIGCONT)
    time.sleep(0.02 * (1 - share))
"""
"""Takes a share of the time from its parent, as a full machine does."""


ONCE: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(1000),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": fail,
}
if mine and kind in ONCE:
    Steps(ONCE[kind], int(number))
if mine and kind == "starve":
    command = [sys.executable, "-S", "-c", STARVE, str(os.getpid()), str(number)]
    Steps(lambda: subprocess.Popen(command), 1)
if mine and kind == "late":
    Steps(lambda: time.sleep(number))
if mine and kind == "corrupt":
    filled = collectives.fill_coded

    def fill(tensor: Any, source: int) -> None:
        filled(tensor, source)
        patterns.words(tensor)[1] ^= 1 << 9

    collectives.fill_coded = fill
if kind == "permute-reordered" and json.loads(Path(sys.argv[1]).read_text())["devices"]:
    kind = "permute"
if kind == "permute":  # on all ranks, as an algorithm does that takes the order of the devices for the ranks'
    gather = collectives.Case._all_gather

    def permuted(case: Any) -> Callable[[], object]:
        step = gather(case)

        def turned() -> None:
            step()
            case._full.copy_(case._full.roll(case._part.numel()))

        return turned

    collectives.Case._all_gather = permuted
if mine and kind == "lacks":

    def lacking(case: Any) -> None:
        raise RuntimeError("this build has no reduce_scatter")

    collectives.Case._reduce_scatter = lacking

if __name__ == "__main__":
    main.main(sys.argv[1])
