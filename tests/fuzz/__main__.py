"""`python -m tests.fuzz [TARGET…] [--rounds N | --seconds S] [--seed N] [--keep DIR]`.

Each reader gets changed inputs in this process, whose memory is limited. What makes one raise, or take too long,
is kept in DIR and named; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from fsdp_doctor.ckpt import memory
from tests.fuzz.mutate import changed
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

ADDRESS_SPACE = 3 << 30
SLOW = 20
"""Seconds for one input of at most 256 KiB, on a machine that does other things too."""


class TooSlow(BaseException):
    """Not an `Exception`: no reader may take it for a fault of its input."""


def fuzz(name: str, target: Target, rounds: int, seconds: float, seed: int, keep: Path | None) -> int:
    """Feed one reader and return how many inputs it failed on."""
    chance = random.Random(f"{name}/{seed}")
    seeds = target.seeds()
    assert seeds and all(seeds), name
    until, done, failed = time.monotonic() + seconds, 0, 0
    while done < rounds and time.monotonic() < until:
        data = changed(chance.choice(seeds), seeds, chance) if done else seeds[0]
        done += 1
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            signal.alarm(SLOW)
            try:
                target.read(data, Path(place))
            except (Exception, TooSlow):
                failed += 1
                print(f"{name}: input {done} of seed {seed}\n{traceback.format_exc()}", flush=True)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{name}-{seed}-{done}").write_bytes(data)
            finally:
                signal.alarm(0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{name}: {done} inputs, {failed} failed, peak {peak} MiB", flush=True)
    return failed


def _too_slow(number: int, frame: object) -> None:
    raise TooSlow(f"more than {SLOW} s")


def main() -> int:
    """Run the named targets, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--rounds", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    unknown = [t for t in given.targets if t not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, _too_slow)
    memory._enabled = True  # as in the child that reads checkpoints
    failed = [
        fuzz(name, target, given.rounds, given.seconds, given.seed, given.keep)
        for name, target in TARGETS.items()
        if not given.targets or name in given.targets
    ]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
