"""Bytes of a file as text in UTF-8, whatever it is packed in; archives give one stream per member.

Nothing is held whole: a member of an archive is read as it is unpacked, and unpacking ends at a limit.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from fsdp_doctor.diagnosis.readers.encodings import chunks, encoding_of
from fsdp_doctor.diagnosis.readers.sources import CHUNK, Patient, Peek, Read, Unreadable, open_file, packing

MAX_DEPTH = 3
MAX_MEMBERS = 20_000
MAX_UNPACKED = 64 << 30
MAX_RATIO = 400
RATIO_FROM = 256 << 20
"""Unpacked bytes from which a packed stream that grew more than `MAX_RATIO` times counts as a bomb."""


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


def streams(path: str, until: float | None = None) -> Iterator[Stream]:
    """All texts of a file. Raises `Unreadable` where the file itself cannot be opened.

    A pipe is waited for until `until` (seconds of `time.monotonic`), then it is `Unreadable` too.
    """
    with open_file(path) as raw:
        patient = until is not None and not stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
        source = Patient(raw.fileno(), until or 0.0) if patient else raw
        yield from _unpack(path, Peek(source), 0, path)


def _unpack(name: str, raw: Peek, depth: int, path: str | None = None) -> Iterator[Stream]:
    head = raw.peek()
    packed = packing(head)
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
        yield from _unpack(name, Peek(_Guarded(inner, raw)), depth + 1)


def _decompressor(packed: str, raw: Peek) -> Read:
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

    def __init__(self, inner: Read, source: Peek) -> None:
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


def _tar(name: str, raw: Peek, depth: int) -> Iterator[Stream]:
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
                    yield from _unpack(f"{name}:{member.name}", Peek(_Guarded(inner, raw)), depth + 1)
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        yield Stream(name, iter(()), b"", "binary", f"is cut or damaged: {error}")


def _zip(name: str, raw: Peek, depth: int, path: str | None) -> Iterator[Stream]:
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
                        counter = Peek(io.BytesIO())
                        counter.given = max(member.compress_size, 1)
                        yield from _unpack(
                            f"{name}:{member.filename}", Peek(_Guarded(inner, counter)), depth + 1
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


def _text(name: str, raw: Peek, head: bytes, path: str | None) -> Stream:
    encoding = encoding_of(head)
    if encoding is None:
        return Stream(name, chunks(raw, "utf-8"), head, "binary", "is no text", path)
    plain = path if encoding == "utf-8" else None
    return Stream(name, chunks(raw, encoding), head, "text", "", plain)
