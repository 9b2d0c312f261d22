"""The other ranks' end: finds rank 0, proves itself, measures the clock, and keeps giving signs of life."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Mapping

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.clock import PINGS, Ping, offset
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.ranks.dial import Answer, Line, Place, addresses, dial
from fsdp_doctor.ranks.journal import BEAT, Journal
from fsdp_doctor.ranks.ports import candidates
from fsdp_doctor.ranks.wire import Frames, Message, WireError
from fsdp_doctor.tables.rank_facts import NO_NAME, SILENT, TIMED_OUT

DIAL_SECONDS = 2.0
PAUSES = (0.2, 0.4, 0.8)
SILENT_SKIPS = 5
"""Rounds in which a port that stayed silent, such as that of torch's store, is left in peace."""
WELCOME_SECONDS = 10.0
PING_SECONDS = 3.0
GRACE = 6.0
"""Seconds beyond rank 0's own deadline in which its verdict may come."""


class Link(threading.Thread):
    """A connection to rank 0 and the thread that keeps it. Messages from rank 0 come out of `next`."""

    def __init__(self, context: Context, key: bytes, host: str, journal: Journal, until: float) -> None:
        """`until` (monotonic) bounds the search for rank 0."""
        super().__init__(name="link", daemon=True)
        self._context, self._key, self._host, self._journal = context, key, host, journal
        self._id = wire.nonce()
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._wake_in, self._wake_out = socket.socketpair()
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._met = threading.Event()
        self.until = until
        """When to give up; later once rank 0 has said how long it takes."""
        self.plan: Message = {}
        self.counted = True
        """Whether this process is the one that rank 0 takes for this rank."""
        self.clock_offset: float | None = None
        self.leader_address: str | None = None
        """Where rank 0 was found."""
        self._welcome_of: Line | None = None
        self.outcomes: dict[int, str] = {}
        """Port -> what the last attempt to find rank 0 there came to; an empty text is success."""

    def met(self, until: float) -> bool:
        """Whether rank 0 has been found; waits for it until then at most."""
        return self._met.wait(max(0.0, until - time.monotonic())) and bool(self.plan)

    def send(self, message: Message) -> None:
        """Queue a message. Raises `WireError` where it is too large."""
        self._out.put(wire.pack(message))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def next(self, until: float) -> Message | None:
        """The next message, or None where the connection ended or none came until then."""
        try:
            return self._messages.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def run(self) -> None:
        """Find rank 0, then serve the connection to its end."""
        try:
            line = self._find()
            if line is not None:
                with line.socket:
                    self._keep(line.socket)
        finally:
            self._met.set()
            self._messages.put(None)

    # ------------------------------------------------------------------------------------ finding it
    def _find(self) -> Line | None:
        self._journal.mark(f"looking for rank 0 at {self._context.address}:{self._context.port}")
        silent: dict[Place, int] = {}
        number = 0
        while (left := self.until - time.monotonic()) > 0:
            line = self._round(silent, min(left, DIAL_SECONDS))
            if line is not None:
                return line
            time.sleep(min(PAUSES[min(number, len(PAUSES) - 1)], max(0.0, self.until - time.monotonic())))
            number += 1
        return None

    def _round(self, silent: dict[Place, int], seconds: float) -> Line | None:
        """One attempt at every place; the line that has been welcomed."""
        port = self._context.port
        found = addresses(self._context.address, port)
        if isinstance(found, str):
            self.outcomes[port] = NO_NAME
            return None
        places = [Place(a, p) for p in candidates(port) for a in found]
        for place in [p for p, skips in silent.items() if skips > 0]:
            silent[place] -= 1
        tried = [p for p in places if silent.get(p, 0) <= 0]
        answers = dial(tried, seconds, enough=lambda _, line: self._welcomed(line))
        chosen = None
        for place, answer in answers.items():
            if isinstance(answer, Line):
                if answer is self._welcome_of:
                    chosen, self.leader_address = answer, place.address
                else:
                    answer.socket.close()
            elif answer.reason == SILENT:
                silent[place] = SILENT_SKIPS
        self._note(answers, chosen)
        return chosen

    def _note(self, answers: Mapping[Place, Answer], chosen: Line | None) -> None:
        for place, answer in answers.items():
            if not isinstance(answer, Line):
                self.outcomes[place.port] = answer.reason
            elif answer is chosen:
                self.outcomes[place.port] = ""
            else:
                self.outcomes[place.port] = "an fsdp-doctor of another job answers there"

    def _welcomed(self, line: Line) -> bool:
        """Say hello; whether the server there is rank 0 of this job."""
        mine, rank = wire.nonce(), self._context.rank
        hello = {
            "type": "hello",
            "rank": rank,
            "host": self._host,
            "id": self._id,
            "nonce": mine,
            "proof": wire.proof(self._key, "hello", line.nonce, mine, rank),
        }
        try:
            line.socket.settimeout(WELCOME_SECONDS)
            line.socket.sendall(wire.pack(hello))
            answer = _one(line.socket, Frames(wire.STRANGER_LIMIT))
        except (OSError, WireError):
            return False
        plan = answer.get("plan")
        if answer.get("type") != "welcome" or not isinstance(plan, Mapping) or not plan:
            return False
        if not wire.proves(answer.get("proof"), self._key, "welcome", mine, line.nonce):
            return False
        seconds = wire.number(plan.get("seconds"))
        if seconds is not None:
            self.until = time.monotonic() + min(max(seconds, 0.0), 86_400.0) + GRACE
        self.counted = answer.get("counted") is not False
        self.plan, self._welcome_of = plan, line
        return True

    # ------------------------------------------------------------------------------------ keeping it
    def _pings(self, peer: socket.socket, frames: Frames) -> list[Ping]:
        """Exchanges of stamps with rank 0, as many as come in time."""
        done: list[Ping] = []
        peer.settimeout(PING_SECONDS)
        until = time.monotonic() + PING_SECONDS
        while len(done) < PINGS and time.monotonic() < until:
            sent = time.time()
            peer.sendall(wire.pack({"type": "clock", "number": len(done)}))
            try:
                answer = _one(peer, frames)
                while answer.get("type") != "clock":
                    self._messages.put(answer)
                    answer = _one(peer, frames)
            except TimeoutError:
                break
            heard, answered = answer.get("heard"), answer.get("answered")
            if answer.get("number") != len(done) or not (
                isinstance(heard, float) and isinstance(answered, float)
            ):
                break
            done.append(Ping(sent, heard, answered, time.time()))
        return done

    def _keep(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = Frames()
        try:
            self.clock_offset = offset(self._pings(peer, frames))
            self._met.set()
            self._serve(peer, frames)
        except (OSError, WireError):
            return

    def _serve(self, peer: socket.socket, frames: Frames) -> None:
        beat, data = 0.0, b""
        peer.settimeout(WELCOME_SECONDS)
        with selectors.DefaultSelector() as selector:
            selector.register(peer, selectors.EVENT_READ)
            selector.register(self._wake_in, selectors.EVENT_READ)
            while True:
                for message in frames.feed(data):
                    self._messages.put(message)
                    if message.get("type") == "verdict":
                        return
                data, now = b"", time.monotonic()
                if now >= beat:
                    stage, seconds = self._journal.stage
                    peer.sendall(wire.pack({"type": "stage", "stage": stage, "seconds": round(seconds, 3)}))
                    beat = now + BEAT
                for key, _ in selector.select(max(0.0, beat - time.monotonic())):
                    if key.fileobj is self._wake_in:
                        self._wake_in.recv(4096)
                        continue
                    data = peer.recv(1 << 16)
                    if not data:
                        return
                with contextlib.suppress(queue.Empty):
                    while True:
                        peer.sendall(self._out.get_nowait())

    def lost(self) -> str:
        """Why there was no verdict after rank 0 had been found, for a person."""
        where = f"rank 0 at {self._context.address} ({self._context.address_from})"
        if self.is_alive():
            return f"{where} gave no verdict by its deadline"
        return f"{where} ended without a verdict"

    def failure(self) -> str:
        """Why rank 0 was not found, for a person."""
        where = f"{self._context.address} ({self._context.address_from})"
        first = self.outcomes.get(self._context.port, TIMED_OUT)
        if first == NO_NAME:
            return f"rank 0 cannot be reached: {where} does not resolve"
        told = "; ".join(f"port {p}: {o}" for p, o in sorted(self.outcomes.items()) if o)
        return f"rank 0 did not answer at {where}: {told or 'no attempt was made'}"


def _one(peer: socket.socket, frames: Frames) -> Message:
    """The next message. Raises `OSError` or `WireError`."""
    data = b""
    while True:
        for message in frames.feed(data):
            return message
        data = peer.recv(1 << 16)
        if not data:
            raise WireError("it closed the connection")
