"""Where the files of a recording lie: in memory or in a folder; every read is bounded.

A name is relative with "/" between its parts, such as `root/proc/version`. A tree may come from anybody:
nothing outside it is read and no device is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from fsdp_doctor.subjects.fact import Unknown

MAX_FILE = 32 << 20
"""Bytes of one file."""
MAX_ENTRIES = 400_000
"""Files and folders of an archive, or names of one folder."""
MAX_DEPTH = 64
"""Parts of one name."""
MAX_NAME = 4096
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


class Index:
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
        """As in `Tree`."""
        if name in self._folders:
            return Kind.FOLDER
        return Kind.FILE if name in self._files else None

    def names(self, folder: str) -> tuple[str, ...]:
        """As in `Tree`."""
        return tuple(sorted(self._folders.get(folder, ())))


class MemoryTree:
    """A tree of literals. A key that ends in "/" is an empty folder."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._index = Index(files, "the recording")
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
