"""Rank 0's end of all connections: what came of them (`roll`), and the server that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fsdp_doctor.ranks.roll import Roll
from fsdp_doctor.ranks.server import Server
from fsdp_doctor.ranks.wire import Message

FAREWELL = 2.0
"""Seconds that the ranks have for closing after the verdict: who closes first keeps the port busy."""


class Hub(Roll):
    """Serves the ranks. Its methods may be called from any thread, `start` and `finish` once each."""

    def __init__(self, world_size: int, key: bytes, plan: Callable[[], Message]) -> None:
        """`plan` makes what a rank is told when it comes."""
        super().__init__(world_size)
        self._server = Server(self, key, plan)
        self.port = 0

    def start(self, ports: Iterable[int]) -> None:
        """Listen on the first free port. Raises `OSError` where none is."""
        self.port = self._server.start(ports)

    def ask(self, messages: Mapping[int, Message], until: float) -> dict[int, Message]:
        """Send each rank its message and collect the replies that come until then."""
        question = self.new_question()
        for rank, message in messages.items():
            self._server.send(rank, {**message, "type": "ask", "number": question})
        return self.replies(question, messages.keys(), until)

    def finish(self, verdict: Message) -> None:
        """Tell every rank how it ended, wait a moment until they have heard it, and close."""
        self._server.send(None, {**verdict, "type": "verdict"})
        self._server.stop(FAREWELL)
