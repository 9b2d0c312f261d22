"""Bytes of a file as text in UTF-8, whatever it is packed in; archives give one stream per member.

Nothing is held whole: a member of an archive is read as it is unpacked, and unpacking ends at a limit.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import queue
import stat
import sys
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Protocol

CHUNK = 1 << 20
HEAD = 64 << 10
MAX_DEPTH = 3
MAX_MEMBERS = 20_000
MAX_UNPACKED = 64 << 30
MAX_RATIO = 400
RATIO_FROM = 256 << 20
"""Unpacked bytes from which a packed stream that grew more than `MAX_RATIO` times counts as a bomb."""
BINARY_SHARE = 0.05
LATE = "the deadline came before its end"


class Read(Protocol):
    """What bytes can be read from."""

    def read(self, size: int = -1, /) -> bytes | None:
        """The next bytes; nothing at the end."""


class Unreadable(Exception):
    """A file that cannot be read on, or at all; the message is one line."""


@dataclass(slots=True)
class Stream:
    """One text with its name. `chunks` raises `Unreadable` where it ends early; `head` is its beginning."""

    name: str
    chunks: Iterator[bytes]
    head: bytes = b""
    kind: str = "text"
    """text, or binary with the reason in `reason`."""
    reason: str = ""
    path: str | None = None
    """The file, where the stream is that file as it lies there."""


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


def streams(path: str, until: float | None = None) -> Iterator[Stream]:
    """All texts of a file. Raises `Unreadable` where the file itself cannot be opened.

    A pipe is waited for until `until` (seconds of `time.monotonic`), then it is `Unreadable` too.
    """
    with open_file(path) as raw:
        patient = until is not None and not stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
        source = Patient(raw.fileno(), until or 0.0) if patient else raw
        yield from _unpack(path, _Peek(source), 0, path)


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


class _Peek(io.RawIOBase):
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
            if len(self._head) >= 512 and not _packed(self._head):
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


def _packed(head: bytes) -> str:
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


def _unpack(name: str, raw: _Peek, depth: int, path: str | None = None) -> Iterator[Stream]:
    head = raw.peek()
    packed = _packed(head)
    if not packed:
        yield _text(name, raw, head, path)
        return
    if depth >= MAX_DEPTH:
        yield Stream(name, iter(()), head, "binary", f"archives inside archives deeper than {MAX_DEPTH}")
        return
    if packed == "tar":
        yield from _tar(name, raw, depth)
    elif packed == "zip":
        yield from _zip(name, raw, depth, path)
    else:
        try:
            inner = _decompressor(packed, raw)
        except Unreadable as error:
            yield Stream(name, iter(()), head, "binary", str(error))
            return
        yield from _unpack(name, _Peek(_Guarded(inner, raw)), depth + 1)


def _decompressor(packed: str, raw: _Peek) -> Read:
    if packed == "gzip":
        return gzip.GzipFile(fileobj=io.BufferedReader(raw, CHUNK))
    if packed == "bzip2":
        return bz2.BZ2File(io.BufferedReader(raw, CHUNK))
    if packed == "xz":
        return lzma.LZMAFile(io.BufferedReader(raw, CHUNK))
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise Unreadable("is packed with zstd: install fsdp-doctor[logs], or unpack it") from None
    reader: Read = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return reader


class _Guarded(io.RawIOBase):
    """A decompressor whose errors are `Unreadable` and whose output has a limit."""

    def __init__(self, inner: Read, source: _Peek) -> None:
        self._inner, self._source, self._total = inner, source, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises `Unreadable`."""
        try:
            data = self._inner.read(CHUNK if size is None or size < 0 else size) or b""
        except (
            OSError,
            EOFError,
            ValueError,
            lzma.LZMAError,
            zlib.error,
            zipfile.BadZipFile,
            tarfile.TarError,
        ) as error:
            raise Unreadable(f"is cut or damaged: {error}") from None
        except Exception as error:
            if type(error).__module__.startswith("zstandard") or type(error).__name__ == "ZstdError":
                raise Unreadable(f"is cut or damaged: {error}") from None
            raise
        self._total += len(data)
        if self._total > MAX_UNPACKED:
            raise Unreadable(f"unpacks to more than {MAX_UNPACKED >> 30} GiB: the rest was not read")
        if self._total > RATIO_FROM and self._total > MAX_RATIO * max(self._source.given, 1):
            raise Unreadable(f"unpacks to more than {MAX_RATIO} times its size: the rest was not read")
        return data


def _tar(name: str, raw: _Peek, depth: int) -> Iterator[Stream]:
    try:
        with tarfile.open(fileobj=io.BufferedReader(raw, CHUNK), mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS:
                    yield Stream(
                        name,
                        iter(()),
                        b"",
                        "binary",
                        f"more than {MAX_MEMBERS} members: the rest was not read",
                    )
                    return
                if member.isfile() and (inner := archive.extractfile(member)) is not None:
                    yield from _unpack(f"{name}:{member.name}", _Peek(_Guarded(inner, raw)), depth + 1)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        yield Stream(name, iter(()), b"", "binary", f"is cut or damaged: {error}")


def _zip(name: str, raw: _Peek, depth: int, path: str | None) -> Iterator[Stream]:
    if path is None or path == "-":
        yield Stream(
            name, iter(()), b"", "binary", "a zip inside another archive or a pipe is not read: unpack it"
        )
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(m.filename.endswith("/data.pkl") for m in members[:50]):
                yield Stream(name, iter(()), b"", "binary", "is a checkpoint: use fsdp-doctor ckpt inspect")
                return
            for member in members[:MAX_MEMBERS]:
                if member.filename and not member.is_dir():
                    with archive.open(member) as inner:
                        counter = _Peek(io.BytesIO())
                        counter.given = max(member.compress_size, 1)
                        yield from _unpack(
                            f"{name}:{member.filename}", _Peek(_Guarded(inner, counter)), depth + 1
                        )
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
        NotImplementedError,
        zlib.error,
    ) as error:
        yield Stream(name, iter(()), b"", "binary", f"is cut or damaged: {error}")


# text


BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def encoding_of(head: bytes) -> str | None:
    """utf-8, utf-16-le, utf-16-be, or None for what is no text."""
    for bom, name in BOMS:
        if head.startswith(bom):
            return name
    sample = head[:4096]
    if not sample:
        return "utf-8"
    if sample[0] == 0x80:  # a pickle, which may look like UTF-16
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) / 2
    if odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.4 * half and odd < 0.05 * half:
        return "utf-16-be"
    strange = sum(
        sample.count(bytes((c,))) for c in (*range(1, 7), 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25)
    )
    if sample.count(0) + strange > max(BINARY_SHARE * len(sample), 1):
        return None
    return "utf-8"


def _text(name: str, raw: _Peek, head: bytes, path: str | None) -> Stream:
    encoding = encoding_of(head)
    if encoding is None:
        return Stream(name, _chunks(raw, "utf-8"), head, "binary", "is no text", path)
    plain = path if encoding == "utf-8" else None
    return Stream(name, _chunks(raw, encoding), head, "text", "", plain)


def _chunks(raw: _Peek, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding != "utf-8" else None
    while True:
        try:
            data = raw.read(CHUNK)
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be read on: {error}") from None
        if not data:
            return
        yield decoder.decode(data).encode("utf-8") if decoder is not None else data
