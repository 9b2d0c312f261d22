"""Where bytes come from: files and pipes that may never speak, and a beginning that can be looked at.

A pipe is read by a thread, so that a deadline holds; nothing is held whole.
"""

from __future__ import annotations

import io
import os
import queue
import stat
import sys
import threading
import time
from typing import IO, Protocol

CHUNK = 1 << 20
HEAD = 64 << 10
LATE = "the deadline came before its end"


class Read(Protocol):
    """What bytes can be read from."""

    def read(self, size: int = -1, /) -> bytes | None:
        """The next bytes; nothing at the end."""


class Unreadable(Exception):
    """A file that cannot be read on, or at all; the message is one line."""


def open_file(path: str) -> IO[bytes]:
    """Open for reading without waiting for a writer. Raises `Unreadable`."""
    if path == "-":
        return sys.stdin.buffer
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        if stat.S_ISREG(os.fstat(descriptor).st_mode) or hasattr(os, "set_blocking"):
            os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None


class Patient:
    """A pipe that may never speak or end: it is read by a thread, which the deadline leaves behind."""

    def __init__(self, descriptor: int, until: float) -> None:
        self._until = until
        self._box: queue.Queue[bytes | OSError] = queue.Queue(maxsize=8)
        self._rest = b""
        self._ended = False
        threading.Thread(target=self._pump, args=(descriptor,), name="pipe", daemon=True).start()

    def _pump(self, descriptor: int) -> None:
        try:
            while data := os.read(descriptor, CHUNK):
                self._box.put(data)
            self._box.put(b"")
        except OSError as error:  # told to the thread that reads
            self._box.put(error)

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, nothing at the end. Raises `Unreadable` at the deadline."""
        if not self._rest and not self._ended:
            try:
                item = self._box.get(timeout=max(self._until - time.monotonic(), 0.01))
            except queue.Empty:
                raise Unreadable(LATE) from None
            if isinstance(item, OSError):
                raise Unreadable(f"cannot be read on: {item.strerror}")
            self._rest, self._ended = item, not item
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class Peek(io.RawIOBase):
    """A stream whose beginning can be looked at without taking it, and which counts what it gave."""

    def __init__(self, raw: Read) -> None:
        self._raw = raw
        self._head = b""
        self.given = 0

    def peek(self, size: int = HEAD) -> bytes:
        """The next bytes, at most `size`."""
        while len(self._head) < size:
            data = self._raw.read(size - len(self._head))
            if not data:
                break
            self._head += data
            if len(self._head) >= 512 and not packing(self._head):
                break  # a pipe may be slow: what is text is known by now
        return self._head[:size]

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill a buffer."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._head:
            data, self._head = self._head[: len(view)], self._head[len(view) :]
        else:
            data = self._raw.read(len(view)) or b""
        view[: len(data)] = data
        self.given += len(data)
        return len(data)


def packing(head: bytes) -> str:
    """What a beginning says that the bytes are packed with; empty for none."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zstd"
    if head[:3] == b"BZh":
        return "bzip2"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    if head[257:262] == b"ustar":
        return "tar"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    return ""
