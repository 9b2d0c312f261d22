"""What rank 0 knows of the other ranks: who came, where each is, what they reported and answered.

The server's thread writes it and the thread that judges reads it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from math import inf

from fsdp_doctor.ranks.journal import Trace
from fsdp_doctor.ranks.wire import Message, number, text

TICK = 0.25
REFUSALS_KEPT = 32
HOST_LIMIT = 255


class Roll:
    """The ranks of a job but rank 0. Every method may be called from any thread."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._changed = threading.Condition()
        self._here: set[int] = set()
        self._reports: deque[tuple[int, Message]] = deque()
        self._reported: set[int] = set()
        self._replies: dict[int, dict[int, Message]] = {}
        self._asked = 0
        self._hurry_until = inf
        self.arrive_until = inf
        """Until when (monotonic) ranks that have not come are waited for; the others may take longer."""
        self.traces: dict[int, Trace] = {}
        self.claims: dict[int, list[str]] = {}
        """Rank -> hosts of further processes that said they are it."""
        self.refusals: list[str] = []
        """Who was turned away, and why."""

    # ------------------------------------------------------------------------------ for the server
    def came(self, rank: int, host: object, address: str, again: bool) -> bool:
        """A process proved that it is a rank; whether it counts. `again`: it is the one that is here."""
        name = text(host, HOST_LIMIT)
        with self._changed:
            if rank in self._here and not again:
                self.claims.setdefault(rank, []).append(name)
                return False
            now = time.monotonic()
            self._here.add(rank)
            self.traces[rank] = Trace(name, address, now, now, stage_since=now)
            self._changed.notify_all()
            return True

    def left(self, rank: int) -> None:
        """The connection of a rank ended."""
        with self._changed:
            self._here.discard(rank)
            self.traces[rank].closed = time.monotonic()
            self._changed.notify_all()

    def heard(self, rank: int, message: Message) -> None:
        """A rank's sign of life, report or reply; anything else is ignored."""
        kind = message.get("type")
        with self._changed:
            if kind == "stage":
                seconds = number(message.get("seconds"))
                if seconds is not None:
                    self.traces[rank].note(text(message.get("stage")), seconds, time.monotonic())
            elif kind == "report" and rank not in self._reported:
                self._reported.add(rank)
                self._reports.append((rank, message))
            elif kind == "reply":
                replies = self._replies.get(int(number(message.get("number")) or 0))
                if replies is not None:
                    replies[rank] = message
            self._changed.notify_all()

    def refused(self, address: str, reason: str) -> None:
        """A connection was turned away."""
        if len(self.refusals) < REFUSALS_KEPT:
            self.refusals.append(f"a connection from {address} was refused: {reason}")

    # ---------------------------------------------------------------- for the thread that judges
    def next_report(self, until: float) -> tuple[int, Message] | None:
        """The next rank's report; None once none is to be expected before `until` (monotonic)."""
        with self._changed:
            while not self._reports:
                left = min(until, self._hurry_until) - time.monotonic()
                if left <= 0 or not self._awaited():
                    return None
                self._changed.wait(min(left, TICK))
            return self._reports.popleft()

    def _awaited(self) -> bool:
        """Whether some rank may still report: one that has not come yet, or is here."""
        late = [r for r in self.traces if r not in self._reported]
        if any(r in self._here for r in late):
            return True
        others = self.world_size - 1
        return len(self._reported) + len(late) < others and time.monotonic() < self.arrive_until

    def hurry(self, until: float) -> None:
        """Wait for ranks that have not reported until then at most, whatever was said before."""
        self._hurry_until = until  # without the lock: a signal handler calls this

    def new_question(self) -> int:
        """The number under which replies to a question come."""
        with self._changed:
            self._asked += 1
            self._replies[self._asked] = {}
            return self._asked

    def replies(self, question: int, ranks: Collection[int], until: float) -> dict[int, Message]:
        """What those of the ranks that are here answer until then."""
        with self._changed:
            while any(r in self._here and r not in self._replies[question] for r in ranks):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return self._replies.pop(question)

    def failed(self, rank: int, problem: str) -> None:
        """Note that what a rank sent is of no use."""
        with self._changed:
            if rank in self.traces:
                self.traces[rank].problem = problem

    def remarks(self) -> tuple[dict[int, str], dict[int, str]]:
        """Rank -> what is known of it, and rank -> host, for ranks that came and did not report."""
        now = time.monotonic()
        with self._changed:
            those = {r: t for r, t in self.traces.items() if r not in self._reported or t.problem}
            hosts = {r: t.host for r, t in those.items() if t.host}
            return {r: t.remark(now) for r, t in those.items()}, hosts

    def address_of(self, rank: int) -> str | None:
        """The address that a rank's connection came from."""
        with self._changed:
            trace = self.traces.get(rank)
            return trace.address if trace else None
