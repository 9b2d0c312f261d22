"""A rank's listener on a port that the kernel chose, for other ranks of the job to try."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.ports import listen

GUEST_SECONDS = 5.0
GUESTS = 512
PROOF_SIZE = 64
"""Characters of a proof; guest and host exchange one each after the banner."""


class Listener(threading.Thread):
    """Answers ranks of the same job on a port that the kernel chose."""

    def __init__(self, key: bytes, rank: int) -> None:
        """Raises `OSError` where no port is to be had."""
        super().__init__(name="listener", daemon=True)
        self._key, self._rank = key, rank
        self._server = listen((0,))
        self.port = int(self._server.getsockname()[1])
        self._guests: dict[socket.socket, tuple[str, bytearray, float]] = {}
        self._ending = threading.Event()

    def close(self) -> None:
        """End it."""
        self._ending.set()
        if self.is_alive():
            self.join(1.0)

    def run(self) -> None:
        """Serve until `close`."""
        with self._server, selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while not self._ending.is_set():
                for key, _ in selector.select(0.2):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is self._server:
                        self._accept(selector)
                    elif not self._hear(key.fileobj):
                        self._leave(selector, key.fileobj)
                now = time.monotonic()
                for guest in [g for g, (_, _, since) in self._guests.items() if now - since > GUEST_SECONDS]:
                    self._leave(selector, guest)
            for guest in tuple(self._guests):
                self._leave(selector, guest)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            guest, _ = self._server.accept()
        except OSError:
            time.sleep(0.01)  # no file left for it: another try comes at once otherwise
            return
        guest.setblocking(False)
        nonce = wire.nonce()
        with contextlib.suppress(OSError):
            guest.send(wire.banner(nonce))
        self._guests[guest] = (nonce, bytearray(), time.monotonic())
        selector.register(guest, selectors.EVENT_READ)
        if len(self._guests) > GUESTS:
            self._leave(selector, next(iter(self._guests)))

    def _hear(self, guest: socket.socket) -> bool:
        nonce, heard, _ = self._guests[guest]
        try:
            data = guest.recv(PROOF_SIZE - len(heard))
        except BlockingIOError:
            return True
        except OSError:
            return False
        heard += data
        if len(heard) < PROOF_SIZE:
            return bool(data)
        if wire.proves(heard.decode("ascii", "replace"), self._key, "reach", nonce):
            with contextlib.suppress(OSError):
                guest.send(wire.proof(self._key, "reached", nonce, self._rank).encode())
        return False

    def _leave(self, selector: selectors.BaseSelector, guest: socket.socket) -> None:
        selector.unregister(guest)
        self._guests.pop(guest, None)
        guest.close()
