"""The sockets of rank 0: one thread for thousands of connections, of which none is believed unproved."""

from __future__ import annotations

import contextlib
import errno
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.ports import listen, raise_open_files
from fsdp_doctor.ranks.roll import Roll
from fsdp_doctor.ranks.wire import Frames, Message, WireError

HANDSHAKE_SECONDS = 15.0
STRANGERS = 256
TOTAL_LIMIT = 1 << 30
"""Bytes of unfinished frames of all ranks together."""
CHUNK = 1 << 18
TICK = 0.25
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
    held: int = 0
    """Bytes of an unfinished frame, as counted in the total."""
    rank: int | None = None
    known: bool = False
    id: str = ""
    closing: bool = False


class Server:
    """Serves connections and writes down in `roll` what comes of them."""

    def __init__(self, roll: Roll, key: bytes, plan: Callable[[], Message]) -> None:
        """`plan` makes what a rank is told when it comes."""
        self._roll, self._key, self._plan = roll, key, plan
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._orders: queue.SimpleQueue[tuple[int | None, bytes]] = queue.SimpleQueue()
        self._known: dict[_Peer, None] = {}
        self._by_rank: dict[int, _Peer] = {}
        self._strangers: dict[_Peer, None] = {}
        self._listener: socket.socket | None = None
        self._paused_until = 0.0
        self._held = 0
        self._ending: float | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self, ports: Iterable[int]) -> int:
        """Listen on the first free port and return it. Raises `OSError` where none is."""
        raise_open_files(self._roll.world_size + STRANGERS + 64)
        self._listener = listen(ports)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()
        return int(self._listener.getsockname()[1])

    def send(self, rank: int | None, message: Message) -> None:
        """Send to one rank, or with None to all that are here."""
        self._orders.put((rank, wire.pack(message)))
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def stop(self, seconds: float) -> None:
        """Send what is queued, wait so long for the ranks to leave, and close."""
        if self._thread.is_alive():
            self._ending = time.monotonic() + seconds
            self._thread.join(seconds + 1.0)

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
            peer = _Peer(connection, host, time.monotonic(), wire.nonce(), Frames(wire.STRANGER_LIMIT))
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._strangers[peer] = None
            self._write(peer, wire.banner(peer.nonce))
            if len(self._strangers) > STRANGERS + self._roll.world_size:
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
        with contextlib.suppress(queue.Empty):
            while True:
                rank, frame = self._orders.get_nowait()
                one = None if rank is None else self._by_rank.get(rank)
                for peer in tuple(self._known) if rank is None else (one,):
                    if peer is not None:
                        self._write(peer, frame)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if peer.closing or not events & selectors.EVENT_READ:
            return
        try:
            data = peer.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        try:
            for message in peer.frames.feed(data):
                self._take(peer, message)
                if peer.closing:
                    return
            self._held += peer.frames.held - peer.held
            peer.held = peer.frames.held
            if self._held > TOTAL_LIMIT:
                raise WireError("the ranks send more than can be kept")
        except WireError as error:
            self._refuse(peer, str(error))
        except Exception as error:  # whatever one peer's message sets off is that peer's end and no other's
            self._refuse(peer, f"{type(error).__name__}: {error}")

    def _take(self, peer: _Peer, message: Message) -> None:
        if not peer.known:
            self._meet(peer, message)
        elif message.get("type") == "clock":
            stamps = {"heard": time.time(), "answered": time.time()}
            self._write(peer, wire.pack({"type": "clock", "number": message.get("number"), **stamps}))
        elif peer.rank is not None:
            self._roll.heard(peer.rank, message)

    def _meet(self, peer: _Peer, message: Message) -> None:
        """The first message of a stranger must be a hello with the right proof."""
        rank, nonce, own_id = message.get("rank"), message.get("nonce"), message.get("id")
        if message.get("type") != "hello" or not isinstance(nonce, str) or not isinstance(own_id, str):
            raise WireError("no hello")
        if type(rank) is not int:
            raise WireError("a hello without a rank")
        if not wire.proves(message.get("proof"), self._key, "hello", peer.nonce, nonce, rank):
            raise WireError("the secrets differ: another --token, another job, or another MASTER_PORT")
        if not 0 < rank < self._roll.world_size:
            raise WireError(f"it says it is rank {rank} of a job of {self._roll.world_size}")
        before = self._by_rank.get(rank)
        again = before is not None and before.id == own_id
        self._strangers.pop(peer, None)
        self._known[peer] = None
        peer.known, peer.id, peer.frames.limit = True, own_id, wire.FRAME_LIMIT
        if self._roll.came(rank, message.get("host"), peer.address, again):
            peer.rank, self._by_rank[rank] = rank, peer
        if again and before is not None:
            self._drop(before)
        welcome = {"type": "welcome", "proof": wire.proof(self._key, "welcome", nonce, peer.nonce)}
        self._write(peer, wire.pack({**welcome, "plan": self._plan(), "counted": peer.rank is not None}))

    def _refuse(self, peer: _Peer, reason: str) -> None:
        if peer.rank is not None:
            self._roll.failed(peer.rank, f"its messages cannot be read: {reason}")
        else:
            self._roll.refused(peer.address, reason)
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
        self._held -= peer.held
        self._strangers.pop(peer, None)
        self._known.pop(peer, None)
        if peer.rank is not None and self._by_rank.get(peer.rank) is peer:
            del self._by_rank[peer.rank]
            self._roll.left(peer.rank)
