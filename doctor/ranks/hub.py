"""Rank 0's end: one thread that serves every other rank, and believes nothing that has not proved itself."""

from __future__ import annotations

import contextlib
import errno
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.journal import Trace
from fsdp_doctor.ranks.ports import listen, raise_open_files
from fsdp_doctor.ranks.wire import Frames, Message, WireError

HANDSHAKE_SECONDS = 15.0
STRANGERS = 256
TOTAL_LIMIT = 1 << 30
"""Bytes of unfinished frames of all ranks together."""
TICK = 0.25
REFUSALS_KEPT = 32
FAREWELL = 2.0
"""Seconds that the ranks have for closing after the verdict: who closes first keeps the port busy."""
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(eq=False, slots=True)
class _Peer:
    """One connection. `rank` is set once it has proved itself; a second process of a rank only listens."""

    socket: socket.socket
    address: str
    opened: float
    nonce: str
    frames: Frames
    out: deque[bytes] = field(default_factory=deque)
    rank: int | None = None
    known: bool = False
    id: str = ""
    closing: bool = False


class Hub:
    """Serves the ranks. Its methods may be called from any thread, `start` and `finish` once each."""

    def __init__(self, world_size: int, key: bytes, plan: Callable[[], Message]) -> None:
        """`plan` makes what a rank is told when it comes."""
        self.world_size = world_size
        self._key, self._plan = key, plan
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._orders: queue.SimpleQueue[tuple[_Peer | None, bytes]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._peers: dict[int, _Peer] = {}
        self._known: dict[_Peer, None] = {}
        self._strangers: dict[_Peer, None] = {}
        self._listener: socket.socket | None = None
        self._paused_until = 0.0
        self._reports: deque[tuple[int, Message]] = deque()
        self._reported: set[int] = set()
        self._replies: dict[int, dict[int, Message]] = {}
        self._asked = 0
        self._ending: float | None = None
        self._hurry_until = inf
        self._held = 0
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self.port = 0
        self.arrive_until = inf
        """Until when (monotonic) ranks that have not come are waited for; the others may take longer."""
        self.traces: dict[int, Trace] = {}
        self.claims: dict[int, list[str]] = {}
        """Rank -> hosts of further processes that said they are it."""
        self.refusals: list[str] = []
        """Who was turned away, and why."""

    def start(self, ports: Iterable[int]) -> None:
        """Listen on the first free port. Raises `OSError` where none is."""
        raise_open_files(self.world_size + STRANGERS + 64)
        self._listener = listen(ports)
        self.port = int(self._listener.getsockname()[1])
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()

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

    def hurry(self, until: float) -> None:
        """Wait for ranks that have not reported until then at most, whatever was said before."""
        self._hurry_until = until  # without the lock: a signal handler calls this

    def ask(self, messages: Mapping[int, Message], until: float) -> dict[int, Message]:
        """Send each rank its message and collect the replies that come until then."""
        with self._changed:
            self._asked += 1
            number = self._asked
            self._replies[number] = {}
            there = {r: p for r, p in self._peers.items() if r in messages}
        for rank, peer in there.items():
            self._send(peer, wire.pack({**messages[rank], "type": "ask", "number": number}))
        with self._changed:
            while any(r not in self._replies[number] and p in self._known for r, p in there.items()):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
            return self._replies.pop(number)

    def failed(self, rank: int, problem: str) -> None:
        """Note that a rank's report is of no use."""
        with self._changed:
            if rank in self.traces:
                self.traces[rank].problem = problem

    def remarks(self) -> tuple[dict[int, str], dict[int, str]]:
        """Rank -> what is known of it, and rank -> host, for ranks that came and did not report."""
        now = time.monotonic()
        with self._changed:
            those = {r: t for r, t in self.traces.items() if r not in self._reported or t.problem}
            return {r: t.remark(now) for r, t in those.items()}, {
                r: t.host for r, t in those.items() if t.host
            }

    def address_of(self, rank: int) -> str | None:
        """The address that a rank's connection came from."""
        with self._changed:
            trace = self.traces.get(rank)
            return trace.address if trace else None

    def finish(self, verdict: Message) -> None:
        """Tell every rank how it ended, wait a moment until they have heard it, and close."""
        if self._thread.is_alive():
            self._ending = time.monotonic() + FAREWELL
            self._orders.put((None, wire.pack({**verdict, "type": "verdict"})))
            self._wake()
            self._thread.join(FAREWELL + 1.0)

    def _awaited(self) -> bool:
        """Whether some rank may still report: one that has not come yet, or is here."""
        late = [t for r, t in self.traces.items() if r not in self._reported]
        if any(t.closed is None for t in late):
            return True
        others = self.world_size - 1
        return len(self._reported) + len(late) < others and time.monotonic() < self.arrive_until

    def _send(self, peer: _Peer, frame: bytes) -> None:
        self._orders.put((peer, frame))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    # ---------------------------------------------------------------- the thread that serves
    def _run(self) -> None:
        try:
            while not self._done():
                for key, events in self._selector.select(TICK):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._wake_in:
                        self._take_orders()
                    else:
                        self._serve(key.data, events)
                self._look_after()
        finally:
            for peer in (*self._known, *self._strangers):
                peer.socket.close()
            if self._listener is not None:
                self._listener.close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()

    def _done(self) -> bool:
        if self._ending is None or not self._orders.empty():
            return False
        return not self._known or time.monotonic() > self._ending

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(64):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:
                    self._selector.unregister(self._listener)
                    self._paused_until = time.monotonic() + TICK
                return
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host = str(address[0]).removeprefix("::ffff:")
            frames = Frames(wire.STRANGER_LIMIT)
            peer = _Peer(connection, host, time.monotonic(), wire.nonce(), frames)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._strangers[peer] = None
            self._write(peer, wire.banner(peer.nonce))
            if len(self._strangers) > STRANGERS + self.world_size:
                self._drop(next(iter(self._strangers)))

    def _look_after(self) -> None:
        now = time.monotonic()
        if self._paused_until and now >= self._paused_until and self._listener is not None:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        for peer in [p for p in self._strangers if now - p.opened > HANDSHAKE_SECONDS]:
            self._drop(peer)

    def _take_orders(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.recv(65536)
        while True:
            try:
                peer, frame = self._orders.get_nowait()
            except queue.Empty:
                return
            for target in tuple(self._known) if peer is None else (peer,):
                if target in self._known:
                    self._write(target, frame)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = peer.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        before = peer.frames.held
        try:
            for message in peer.frames.feed(data):
                self._take(peer, message)
                if peer.closing:
                    return
            self._held += peer.frames.held - before
            if self._held > TOTAL_LIMIT:
                raise WireError("the ranks send more than can be kept")
        except WireError as error:
            self._refuse(peer, str(error))

    def _take(self, peer: _Peer, message: Message) -> None:
        kind = message.get("type")
        if not peer.known:
            self._meet(peer, message)
        elif kind == "clock":
            heard = time.time()
            answer = {
                "type": "clock",
                "number": message.get("number"),
                "heard": heard,
                "answered": time.time(),
            }
            self._write(peer, wire.pack(answer))
        elif peer.rank is None:
            return
        elif kind == "stage":
            stage, seconds = message.get("stage"), message.get("seconds")
            if isinstance(stage, str) and isinstance(seconds, (int, float)):
                with self._changed:
                    self.traces[peer.rank].note(stage, float(seconds), time.monotonic())
        elif kind == "report":
            with self._changed:
                if peer.rank not in self._reported:
                    self._reported.add(peer.rank)
                    self._reports.append((peer.rank, message))
                    self._changed.notify_all()
        elif kind == "reply":
            number = message.get("number")
            with self._changed:
                if isinstance(number, int) and number in self._replies:
                    self._replies[number][peer.rank] = message
                    self._changed.notify_all()

    def _meet(self, peer: _Peer, message: Message) -> None:
        """The first message of a stranger must be a hello with the right proof."""
        rank, nonce, own_id = message.get("rank"), message.get("nonce"), message.get("id")
        if message.get("type") != "hello" or not isinstance(nonce, str) or not isinstance(own_id, str):
            raise WireError("no hello")
        if type(rank) is not int:
            raise WireError("a hello without a rank")
        if not wire.proves(message.get("proof"), self._key, "hello", peer.nonce, nonce, rank):
            raise WireError("it has another token: another --token, another job, or another MASTER_PORT")
        if not 0 < rank < self.world_size:
            raise WireError(f"it says it is rank {rank} of a job of {self.world_size}")
        host = message.get("host")
        name = host[:255] if isinstance(host, str) else ""
        self._strangers.pop(peer, None)
        with self._changed:
            peer.known, peer.id = True, own_id
            peer.frames.limit = wire.FRAME_LIMIT
            before = self._peers.get(rank)
            if before is not None and before in self._known and before.id != own_id:
                self.claims.setdefault(rank, []).append(name)
            else:
                peer.rank = rank
                self._peers[rank] = peer
                now = time.monotonic()
                self.traces[rank] = Trace(name, peer.address, now, now, stage_since=now)
            self._known[peer] = None
            self._changed.notify_all()
        if before is not None and before.id == own_id:
            self._drop(before)
        welcome = {"type": "welcome", "proof": wire.proof(self._key, "welcome", nonce, peer.nonce)}
        self._write(peer, wire.pack({**welcome, "plan": self._plan(), "counted": peer.rank is not None}))

    def _refuse(self, peer: _Peer, reason: str) -> None:
        if peer.known and peer.rank is not None:
            self.failed(peer.rank, f"its messages cannot be read: {reason}")
        elif len(self.refusals) < REFUSALS_KEPT:
            self.refusals.append(f"a connection from {peer.address} was refused: {reason}")
        self._write(peer, wire.pack({"type": "refused", "reason": reason[:200]}))
        self._drop(peer)

    def _write(self, peer: _Peer, data: bytes) -> None:
        peer.out.append(data)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.out:
                sent = peer.socket.send(peer.out[0])
                if sent < len(peer.out[0]):
                    peer.out[0] = peer.out[0][sent:]
                    break
                peer.out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(peer.socket, events, peer)

    def _drop(self, peer: _Peer) -> None:
        if peer.closing:
            return
        peer.closing = True
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()
        self._strangers.pop(peer, None)
        with self._changed:
            self._known.pop(peer, None)
            if peer.rank is not None and self._peers.get(peer.rank) is peer:
                self.traces[peer.rank].closed = time.monotonic()
            self._changed.notify_all()
