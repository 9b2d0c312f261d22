"""Faults of one rank or link for the bench of localisation, and what a probe must say of each."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor.subjects.fabric import COMPUTE, DIED, HUNG, LATE, LINK, TRANSFER, Fabric

WORKER = Path(__file__).parents[1] / "doctor" / "probe" / "worker"
SLOW = "400mbit"
"""Of an adapter that otherwise carries some 16 Gbit/s: a namespace's own packets."""
STEPS = (5, 150)
"""Common steps between which a rank falls out: from connecting into the pairs."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a probe said, with what was wrong: whether the fault was named, and who else was."""

    right: bool
    others_warned: tuple[int, ...] = ()
    others_failed: tuple[int, ...] = ()


def nothing() -> None:
    """A healthy rank."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `inject` runs in the victim before its worker; `sabotage` is for ranks that end."""

    name: str
    how: str
    kind: str = ""
    """Of the culprit or failure that must name the victim."""
    inject: Callable[[], object] = nothing
    sabotage: str = ""
    """As `tests.support.sabotage` takes it."""
    network: str = ""
    """What of the network between hosts is slow: `nic` or `way`; `none` for a healthy one."""

    def judge(self, found: Fabric, victims: Sequence[int]) -> Said:
        """Hold what was concluded against the fault; `victims` is one rank, or a link's source and target."""
        ends = [(f.kind, f.ranks) for f in found.failures]
        if self.kind in (DIED, HUNG):
            guilty = {r for kind, ranks in ends for r in ranks} - {victims[0]}
            right = ends == [(self.kind, (victims[0],))]
            return Said(right, tuple(sorted(guilty)), tuple(sorted(guilty)))
        if self.kind == LINK:
            fits = [
                c
                for c in found.culprits
                if c.kind == LINK and (c.source, c.target) == tuple(victims) and not c.both_ways
            ]
        else:
            fits = [c for c in found.culprits if c.kind == self.kind and victims[0] in c.ranks]
        wrong = [
            c
            for c in found.culprits
            if c not in fits and not (self.kind not in ("", LINK) and set(c.ranks) == {victims[0]})
        ]
        return Said(
            bool(fits),
            tuple(sorted({r for c in wrong for r in c.ranks})),
            tuple(sorted({r for c in wrong if c.fails for r in c.ranks})),
        )


def late() -> None:
    """Sleep 20 ms before each step."""
    journal = loaded("journal")
    entered = journal.Progress.enter  # type: ignore[attr-defined]

    def enter(progress: object) -> None:
        time.sleep(0.02)
        entered(progress)

    journal.Progress.enter = enter  # type: ignore[attr-defined]


def starve() -> None:
    """Lose 90 % of each 20 ms to a child that stops this process."""
    parent = os.getpid()
    if os.fork():
        return
    while os.getppid() == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGSTOP)
            time.sleep(0.018)
            os.kill(parent, signal.SIGCONT)
            time.sleep(0.002)
    os._exit(0)


def pace() -> None:
    """Send at 60 MB/s; the library is preloaded."""
    os.environ["PACE_MBPS"] = "60"


HEALTHY = Fault("healthy", "none")
HEALTHY_HOSTS = Fault("healthy hosts", "none, one rank per network namespace", network="none")
FAULTS = (
    HEALTHY,
    Fault("late", "sleeps 20 ms before each collective", LATE, late),
    Fault("starved", "is stopped for 18 of every 20 ms", COMPUTE, starve),
    Fault("slow sender", "sends at 60 MB/s", TRANSFER, pace),
    Fault("sleeping", "sleeps for good in a random step", HUNG, sabotage="sleep"),
    Fault("killed", "gets SIGKILL in a random step", DIED, sabotage="kill"),
    Fault("stopped", "gets SIGSTOP in a random step", HUNG, sabotage="stop"),
    HEALTHY_HOSTS,
    Fault("slow NIC", f"its host's adapter carries {SLOW} each way (tbf)", TRANSFER, network="nic"),
    Fault(
        "slow cable direction",
        f"{SLOW} from its host to one other, the way back is whole (htb, u32)",
        LINK,
        network="way",
    ),
)
BY_NAME = {f.name: f for f in FAULTS}


def random_step() -> int:
    """The common step in which a rank falls out."""
    return random.randint(*STEPS)


def loaded(name: str) -> object:
    """A module of the worker."""
    if str(WORKER) not in sys.path:
        sys.path.insert(0, str(WORKER))
    from start import load  # type: ignore[import-not-found]

    return load(name)
