"""How ranks agree on what comes next: through the store, whatever state the backend under test is in.

A step that can fail for one rank alone (memory, an operation that a backend lacks) is prepared first, then
every rank tells whether it is ready: one that is not takes the step from all of them instead of leaving the
others in a collective that never ends.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    import torch.distributed as dist

    from .journal import Journal

CHUNK = 1 << 20
LAST = 5.0
"""Seconds that the last rank waits for the others to leave."""
POLL = 0.01


def connect(name: str, rank: int, world: int, seconds: float) -> dist.Store:
    """The store at MASTER_ADDR and MASTER_PORT; torchrun's own where it offers it."""
    import torch.distributed as dist

    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        is_master=rank == 0 and not hosted,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
    )
    return dist.PrefixStore(name, store)


class Meeting:
    """Agreements of all ranks, in the order in which all of them make them."""

    def __init__(self, store: dist.Store, rank: int, world: int, seconds: float, journal: Journal) -> None:
        self.store = store
        self._rank, self._world, self._journal = rank, world, journal
        self._patience = timedelta(seconds=seconds)
        self._count = 0

    def _wait(self, key: str) -> None:
        self._journal.progress.enter()
        self.store.wait([key], self._patience)
        self._journal.progress.leave()

    def all_ready(self, problem: str | None = None) -> list[str]:
        """Wait for all ranks; the problems that any of them has, at most one per rank and four in all."""
        self._count += 1
        name = f"ready/{self._count}"
        if problem is not None:
            number = self.store.add(name + "/bad", 1)
            self.store.set(f"{name}/bad/{number}", f"rank {self._rank}: {problem}")
        if self.store.add(name, 1) == self._world:
            self.store.set(name + "/go", "1")
        self._wait(name + "/go")
        bad = self.store.add(name + "/bad", 0)
        return [self.store.get(f"{name}/bad/{i}").decode() for i in range(1, min(bad, 4) + 1)]

    def prepare(self, step: Callable[[], T]) -> T | None:
        """The result of a local step where it succeeded on all ranks, else None."""
        problem, made = None, None
        try:
            made = step()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        problems = self.all_ready(problem)
        for said in problems:
            self._journal.write({"skipped": said})
        return None if problems else made

    def decide(self, choose: Callable[[], str]) -> str:
        """What rank 0 chooses."""
        self._count += 1
        key = f"decision/{self._count}"
        if self._rank == 0:
            chosen = choose()
            # A step like that of the others, so that all ranks count the same.
            self._journal.progress.enter()
            self.store.set(key, chosen)
            self._journal.progress.leave()
            return chosen
        self._wait(key)
        said: str = self.store.get(key).decode()
        return said

    def part(self) -> None:
        """Leave; the rank that may hold the store leaves last."""
        self.store.add("left", 1)
        until = time.monotonic() + LAST
        while self._rank == 0 and self.store.add("left", 0) < self._world and time.monotonic() < until:
            time.sleep(POLL)

    def hand_in(self, name: str, lines: list[str]) -> None:
        """Leave this rank's lines in the store."""
        data = zlib.compress("\n".join(lines).encode(), 1)
        parts = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
        for i, part in enumerate(parts):
            self.store.set(f"{name}/{self._rank}/{i}", part.hex())
        self.store.set(f"{name}/{self._rank}", str(len(parts)))

    def collect(self, name: str, rank: int) -> str:
        """The lines that a rank left."""
        count = int(self.store.get(f"{name}/{rank}"))
        parts = [self.store.get(f"{name}/{rank}/{i}").decode() for i in range(count)]
        return zlib.decompress(bytes.fromhex("".join(parts))).decode()
