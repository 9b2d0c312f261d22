"""Where the files of a recording lie: in memory, in a folder or in a zip archive; every read is bounded.

A name is relative with "/" between its parts, such as `root/proc/version`. A tree may come from anybody:
nothing outside it is read, no device is opened, and an archive cannot fill the memory.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from fsdp_doctor.subjects.fact import Unknown

MAX_FILE = 32 << 20
"""Bytes of one file."""
MAX_ENTRIES = 400_000
"""Files and folders of an archive, or names of one folder."""
MAX_DIRECTORY_BYTES = 96 << 20
"""Bytes of an archive's table of contents."""
MAX_DEPTH = 64
"""Parts of one name."""
MAX_NAME = 4096
MAX_RATIO = 200
"""Unpacked to packed bytes of an archive's file larger than `RATIO_FROM`."""
RATIO_FROM = 4 << 20
_OPEN = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # none of them is everywhere
    _OPEN |= getattr(os, _flag, 0)


class RecordingError(Exception):
    """What was given is no recording that can be read; the text is one line for the user."""


class Kind(Enum):
    """What lies at a name."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A device, a pipe, a socket or a link out of the recording: never opened."""


class Tree(Protocol):
    """Named bytes. No method raises."""

    def kind(self, name: str) -> Kind | None:
        """What lies at a name; None is nothing. "" is the tree itself."""

    def names(self, folder: str) -> tuple[str, ...]:
        """Sorted names in a folder; empty where there is none."""

    def read(self, name: str, limit: int) -> bytes | Unknown:
        """The first `limit` bytes of a file, at most `MAX_FILE`."""


def parts_of(name: str) -> list[str] | None:
    """The parts of a name; None where it leads out of its tree or is absurd."""
    parts = name.split("/")
    bad = len(name) > MAX_NAME or len(parts) > MAX_DEPTH or "\0" in name
    return None if bad or any(p in ("", ".", "..") for p in parts) else parts


class _Index:
    """Folders of a list of names; a name that ends in "/" is a folder."""

    def __init__(self, names: Iterable[str], where: str) -> None:
        self._files: set[str] = set()
        self._folders: dict[str, set[str]] = {"": set()}
        for count, name in enumerate(names):
            if count >= MAX_ENTRIES:
                raise RecordingError(f"{where} holds more than {MAX_ENTRIES} files: not a recording")
            plain = name[:-1] if name.endswith("/") else name
            if parts_of(plain) is None:
                raise RecordingError(f"{where} holds a name that no recording has: {name[:80]!r}")
            self._add(plain, folder=plain != name)

    def _add(self, name: str, *, folder: bool) -> None:
        if folder:
            self._folders.setdefault(name, set())
        else:
            self._files.add(name)
        while name:
            parent, _, last = name.rpartition("/")
            names = self._folders.get(parent)
            if names is not None:
                names.add(last)
                return
            self._folders[parent] = {last}
            name = parent

    def kind(self, name: str) -> Kind | None:
        if name in self._folders:
            return Kind.FOLDER
        return Kind.FILE if name in self._files else None

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(sorted(self._folders.get(folder, ())))


class MemoryTree:
    """A tree of literals. A key that ends in "/" is an empty folder."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._index = _Index(files, "the recording")
        self._bytes = files

    def kind(self, name: str) -> Kind | None:
        """As in `Tree`."""
        return self._index.kind(name)

    def names(self, folder: str) -> tuple[str, ...]:
        """As in `Tree`."""
        return self._index.names(folder)

    def read(self, name: str, limit: int) -> bytes | Unknown:
        """As in `Tree`."""
        if self._index.kind(name) is not Kind.FILE:
            return Unknown(f"no file {name}", absent=True)
        return self._bytes[name][: max(0, min(limit, MAX_FILE))]


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
        self._index = _Index(entries, str(path))
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


class DirectoryTree:
    """A folder. Links inside it are followed as long as they stay inside."""

    def __init__(self, path: Path) -> None:
        self._root = os.path.realpath(path)
        if not os.path.isdir(self._root):
            raise RecordingError(f"{path} is not a folder")
        self._listed: dict[str, dict[str, Kind]] = {}
        self._has_links = False

    def kind(self, name: str) -> Kind | None:
        """As in `Tree`."""
        if not name:
            return Kind.FOLDER
        parent, _, last = name.rpartition("/")
        listed = self._listed.get(parent)
        if listed is not None:
            return listed.get(last)
        parts = parts_of(name)
        folder = ""
        for part in parts[:-1] if parts else ():
            if self._list(folder).get(part) is not Kind.FOLDER:
                return None
            folder = f"{folder}/{part}" if folder else part
        return self._list(folder).get(last) if parts else None

    def names(self, folder: str) -> tuple[str, ...]:
        """As in `Tree`."""
        return tuple(sorted(self._list(folder))) if self.kind(folder) is Kind.FOLDER else ()

    def read(self, name: str, limit: int) -> bytes | Unknown:
        """As in `Tree`; anything but a regular file inside the folder is unknown and not opened."""
        kind = self.kind(name)
        if kind is None:
            return Unknown(f"no file {name}", absent=True)
        if kind is not Kind.FILE:
            return Unknown(f"{name} is no regular file inside the recording")
        try:
            real = os.path.join(self._root, name)
            if self._has_links:  # every folder above the file has been listed by now
                real = os.path.realpath(real)
            if not self._inside(real) or not stat.S_ISREG(os.lstat(real).st_mode):
                return Unknown(f"{name} is no regular file inside the recording")
            handle = os.open(real, _OPEN)
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    return Unknown(f"{name} is no regular file inside the recording")
                return file.read(max(0, min(limit, MAX_FILE)))
        except (OSError, ValueError) as error:
            return Unknown(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")

    def _inside(self, real: str) -> bool:
        return real.startswith(self._root.rstrip(os.sep) + os.sep)

    def _list(self, folder: str) -> dict[str, Kind]:
        listed = self._listed.get(folder)
        if listed is None:
            listed = self._listed[folder] = {}
            try:
                with os.scandir(os.path.join(self._root, folder)) as entries:
                    for entry in entries:
                        if len(listed) >= MAX_ENTRIES:
                            break
                        listed[entry.name] = self._kind(entry)
            except (OSError, ValueError):
                listed.clear()
        return listed

    def _kind(self, entry: os.DirEntry[str]) -> Kind:
        try:
            if entry.is_symlink():
                self._has_links = True
                if not self._inside(os.path.realpath(entry.path)):
                    return Kind.OTHER
            if entry.is_dir():
                return Kind.FOLDER
            return Kind.FILE if entry.is_file() else Kind.OTHER
        except OSError:  # a link to itself
            return Kind.OTHER
