"""Where a checkpoint lies: names, sizes and bytes of a folder or a file, whatever holds them.

Nothing but regular files is opened, so that a FIFO or a device cannot block or answer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from fsdp_doctor.ckpt.limits import FILES, FOLDER_DEPTH


@dataclass(frozen=True, slots=True)
class Node:
    """One name below the checkpoint."""

    path: str
    """Relative, with "/" between folders; "" for a checkpoint that is one file.

    Undecodable bytes are surrogates."""
    size: int | None
    modified: float | None
    folder: bool = False
    special: str | None = None
    """"FIFO", "socket", "device": never opened."""
    link: str | None = None
    """Text of a symbolic link; size and kind are then its target's."""
    outside: bool = False
    """The link leads out of the checkpoint."""
    unreadable: str | None = None
    stamp: tuple[int, int, int] | None = None
    """Inode, size and modification time in ns: equal while a file is left alone."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def parent(self) -> str:
        """The folder of it, "" for the checkpoint's own."""
        return self.path.rpartition("/")[0]

    @property
    def regular(self) -> bool:
        """Whether it can be opened as a file."""
        return not self.folder and self.special is None and self.unreadable is None


class NotRegular(OSError):
    """Something that is no regular file was to be opened."""


class Store(Protocol):
    """A folder or a file with a checkpoint."""

    root: str
    is_file: bool

    def nodes(self) -> tuple[list[Node], bool]:
        """Everything below, and whether that was too much to list. Raises `OSError`."""

    def open(self, path: str) -> BinaryIO:
        """A regular file, to be read from any place. Raises `OSError`."""

    def again(self, path: str) -> Node:
        """One name as it is now."""


class LocalStore:
    """A path of this machine. The root may be a link; below it links are seen as such."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._real = os.path.realpath(root)
        mode = os.stat(root).st_mode
        self.is_file = not stat.S_ISDIR(mode)

    def nodes(self) -> tuple[list[Node], bool]:
        """The file itself, or all names down to `FOLDER_DEPTH` folders below, sorted by path."""
        if self.is_file:
            return [self.again("")], False
        found: list[Node] = []
        cut = False
        for node in self._walk("", 0):
            if len(found) >= FILES:
                cut = True
                break
            found.append(node)
        return sorted(found, key=lambda n: n.path), cut

    def _walk(self, folder: str, depth: int) -> Iterator[Node]:
        with os.scandir(os.path.join(self.root, folder)) as names:
            for entry in names:
                path = f"{folder}/{entry.name}" if folder else entry.name
                node = self._node(path, entry.path)
                yield node
                if node.folder and node.link is None and depth < FOLDER_DEPTH:
                    try:
                        yield from self._walk(path, depth + 1)
                    except OSError as error:
                        yield Node(path + "/", None, None, unreadable=error.strerror or str(error))

    def again(self, path: str) -> Node:
        """One name as it is now."""
        return self._node(path, os.path.join(self.root, path) if path else self.root)

    def _node(self, path: str, full: str) -> Node:
        link, outside = None, False
        try:
            seen = os.lstat(full)
            if stat.S_ISLNK(seen.st_mode):
                link = os.readlink(full)
                real = os.path.realpath(full)
                inside = real == self._real or real.startswith(self._real + os.sep)
                outside = bool(path) and not inside
                seen = os.stat(full)
        except OSError as error:
            return Node(path, None, None, link=link, outside=outside, unreadable=error.strerror or str(error))
        stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        kind = _special(seen.st_mode)
        folder = stat.S_ISDIR(seen.st_mode)
        size = seen.st_size if not folder and kind is None else None
        return Node(path, size, seen.st_mtime, folder, kind, link, outside, stamp=stamp)

    def open(self, path: str) -> BinaryIO:
        """A regular file. Opening does not wait, whatever stands there."""
        full = os.path.join(self.root, path) if path else self.root
        flags = (
            os.O_RDONLY
            | getattr(os, "O_NONBLOCK", 0)
            | getattr(os, "O_NOCTTY", 0)
            | getattr(os, "O_CLOEXEC", 0)
        )
        handle = os.open(full, flags | getattr(os, "O_BINARY", 0))
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise NotRegular(f"{path or full!a} is no regular file")
            return os.fdopen(handle, "rb", buffering=1 << 17)
        except BaseException:
            os.close(handle)
            raise


def _special(mode: int) -> str | None:
    if stat.S_ISFIFO(mode):
        return "FIFO"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else None
