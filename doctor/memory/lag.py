"""When freed blocks that other streams used come back: a GPU that is behind the host.

The allocator records an event on each stream that used a block when the block is freed, and asks for these
events when it is next asked for memory. Each stream's are done in their order. The host keeps the GPU's pace
only where it waits: FSDP1's rate limiter waits for the freeing of earlier units, and with it for what the
streams of computation and all-gathers did up to there. Those that reduce gradients are waited for by nothing
before the end of backward, however long the collectives take.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fsdp_doctor.memory.allocator import Block
from fsdp_doctor.memory.events import WAITED, EventList

LAUNCHES = 1024
"""Kernels that CUDA queues, about, before a launch makes the host wait for the GPU."""
JOINS = ("after backward", "clip", "optimizer")
"""Marks at which the stream of computation has been made to wait for all others."""
COMPUTATION = 0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the GPU is behind the host."""

    launches: int
    """Kernels that are queued; each block that is allocated counts as one."""
    reduces: bool = False
    """Whether what gradients are reduced by takes until the end of backward."""


class Behind:
    """Freed blocks whose events are not done. `reuse` is called for each whose last one is."""

    def __init__(self, events: EventList, lag: Lag, reuse: Callable[[Block], None]) -> None:
        self._lag, self._reuse = lag, reuse
        self._paced = {
            COMPUTATION,
            *(s for k, s in zip(events.kinds, events.streams, strict=True) if k == WAITED),
        }
        """The streams that the host waits for, and those that wait for them all the time."""
        self._queues: dict[int, deque[tuple[int, int, Block]]] = {}
        self._open: dict[Block, int] = {}
        self._joins: list[int] = []
        """The rows at which the stream of computation waited for all others."""
        self._launched_at: list[int] = []
        """Kernels that were queued up to each."""
        self._launched = 0

    def launch(self) -> None:
        """A kernel is queued, and its memory asked for."""
        self._launched += 1
        upto = self._launched - self._lag.launches
        for stream, queue in self._queues.items():
            if self._lag.reduces and stream not in self._paced:
                at = bisect.bisect_right(self._launched_at, self._launched - LAUNCHES)
                self._done(queue, self._joins[at - 1] if at else 0)
                continue
            while queue and queue[0][1] <= upto:
                self._close(queue.popleft()[2])

    def free(self, block: Block, users: Iterable[int], row: int) -> None:
        """A block is freed that these streams used."""
        users = tuple(users)
        self._open[block] = len(users)
        for stream in users:
            self._queues.setdefault(stream, deque()).append((row, self._launched, block))

    def wait(self, stream: int, upto: int) -> None:
        """The host has waited for what a stream (-1: all) was given before a row."""
        at = bisect.bisect_left(self._joins, upto)
        joined = self._joins[at - 1] if at else 0
        for user, queue in self._queues.items():
            self._done(queue, upto if stream in (-1, user) or user in self._paced else joined)

    def mark(self, name: str, row: int) -> None:
        """A moment of the training loop."""
        if name in JOINS:
            self._joins.append(row)
            self._launched_at.append(self._launched)

    def _done(self, queue: deque[tuple[int, int, Block]], upto: int) -> None:
        while queue and queue[0][0] < upto:
            self._close(queue.popleft()[2])

    def _close(self, block: Block) -> None:
        self._open[block] -= 1
        if not self._open[block]:
            del self._open[block]
            self._reuse(block)
