"""A recording in a zip archive, read in place: it cannot fill the memory, and nothing is unpacked to disk."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from fsdp_doctor.facts.trees import MAX_FILE, Index, Kind, RecordingError
from fsdp_doctor.subjects.fact import Unknown

MAX_DIRECTORY_BYTES = 96 << 20
"""Bytes of an archive's table of contents."""
MAX_RATIO = 200
"""Unpacked to packed bytes of an archive's file larger than `RATIO_FROM`."""
RATIO_FROM = 4 << 20


class ZipTree:
    """A zip archive, read in place: nothing is unpacked to disk."""

    def __init__(self, path: Path) -> None:
        try:
            size = _table_of_contents_bytes(path)
            if size > MAX_DIRECTORY_BYTES:
                raise RecordingError(f"{path}: the archive's table of contents is too large: {size} bytes")
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from None
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
            raise RecordingError(f"{path} is no zip archive that can be read: {error}") from None
        entries = {i.filename: i for i in self._zip.infolist() if not _is_special(i)}
        self._index = Index(entries, str(path))
        self._entries = entries

    def kind(self, name: str) -> Kind | None:
        """As in `Tree`."""
        return self._index.kind(name)

    def names(self, folder: str) -> tuple[str, ...]:
        """As in `Tree`."""
        return self._index.names(folder)

    def read(self, name: str, limit: int) -> bytes | Unknown:
        """As in `Tree`; a file that unpacks to far more than it should is unknown."""
        entry = self._entries.get(name)
        if entry is None or self._index.kind(name) is not Kind.FILE:
            return Unknown(f"no file {name}", absent=True)
        if entry.file_size > MAX_FILE:
            return Unknown(f"{name} is too large: {entry.file_size} bytes")
        if entry.file_size > RATIO_FROM and entry.file_size > MAX_RATIO * entry.compress_size:
            return Unknown(f"{name} unpacks to {entry.file_size} bytes from {entry.compress_size}: refused")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return Unknown(f"{name} is encrypted or packed in a way that recordings do not use")
        try:
            with self._zip.open(entry) as file:
                return file.read(max(0, min(limit, MAX_FILE)))
        except (
            OSError,
            EOFError,
            ValueError,
            RuntimeError,
            zipfile.BadZipFile,
            zlib.error,
            struct.error,
        ) as e:
            return Unknown(f"{name} is damaged in the archive: {e}")


def _is_special(entry: zipfile.ZipInfo) -> bool:
    mode = entry.external_attr >> 16
    return stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR)


def _table_of_contents_bytes(path: Path) -> int:
    """The size that the archive declares for its table, before anything is built from it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise zipfile.BadZipFile("not a regular file")
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - 65557 - 20))
        tail = file.read()
        end = len(tail) - 22
        if not (end >= 0 and tail[end:].startswith(b"PK\5\6") and tail.endswith(b"\0\0")):
            end = tail.rfind(b"PK\5\6")
        if end < 0 or len(tail) < end + 22:
            raise zipfile.BadZipFile("no end record")
        declared: int = struct.unpack_from("<I", tail, end + 12)[0]
        if end >= 20 and tail[end - 20 :].startswith(b"PK\6\7"):
            # zipfile reads the 64-bit record from where it must lie, not from where the locator points.
            file.seek(max(0, start + end - 20 - 56))
            record = file.read(56)
            if record.startswith(b"PK\6\6"):
                declared = max(
                    declared if declared != 0xFFFFFFFF else 0, struct.unpack_from("<Q", record, 40)[0]
                )
        return declared
