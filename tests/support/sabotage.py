"""A rank with a fault: `start.py` of the probe's worker, with one part replaced as SABOTAGE says.

SABOTAGE is `kind:rank[:number]`. The probe runs this script in place of its own.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

START = Path(__file__).parents[2] / "doctor" / "probe" / "worker" / "start.py"
spec = importlib.util.spec_from_file_location("start", START)
assert spec is not None and spec.loader is not None
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)

kind, rank, *rest = [*os.environ.get("SABOTAGE", "none:-1").split(":")]
number = float(rest[0]) if rest else 0.0
mine = os.environ["RANK"] == rank
if mine and kind == "late-start":
    time.sleep(number)
if mine and kind == "never":
    os._exit(7)
main, journal, patterns, collectives = (start.load(n) for n in ("main", "journal", "patterns", "collectives"))
steps = 0


def at_step(action):
    """Replace `Progress.enter` so that the action runs when the rank has made `number` steps in a sweep."""
    entered = journal.Progress.enter

    def enter(self) -> None:
        global steps
        steps += 1
        action()
        entered(self)

    journal.Progress.enter = enter


def once(action):
    return lambda: action() if steps == int(number) else None


if mine and kind == "sleep":
    at_step(once(lambda: time.sleep(1000)))
if mine and kind == "kill":
    at_step(once(lambda: os.kill(os.getpid(), signal.SIGKILL)))
if mine and kind == "stop":
    at_step(once(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
if mine and kind == "raise":

    def fail() -> None:
        raise ValueError("the sabotage raised this")

    at_step(once(fail))
if mine and kind == "late":
    at_step(lambda: time.sleep(number))
if mine and kind == "corrupt":
    filled = collectives.fill_coded

    def fill(tensor, source) -> None:
        filled(tensor, source)
        patterns.words(tensor)[1] ^= 1 << 9

    collectives.fill_coded = fill
if mine and kind == "lacks":

    def lacking(self):
        raise RuntimeError("this build has no reduce_scatter")

    collectives.Case._reduce_scatter = lacking

if __name__ == "__main__":
    main.main(sys.argv[1])
