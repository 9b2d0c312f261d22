"""Files of the machine that runs this process: only regular ones are read, and no read lasts for ever."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from fsdp_doctor.facts.guard import Guard
from fsdp_doctor.facts.source import FILE_LIMIT
from fsdp_doctor.subjects.fact import Unknown

CHUNK = 1 << 16
OPEN = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):  # none of them is everywhere
    OPEN |= getattr(os, _flag, 0)
NAME_LIMIT = 100_000
"""Names of one folder."""


class LiveFiles:
    """The file part of a `Source`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def read(self, path: str, limit: int = FILE_LIMIT) -> bytes | Unknown:
        """The first `limit` bytes; a device, a pipe or a socket is never opened."""
        answer = self._guard.call(path, lambda: _read(path, limit))
        if answer is None:
            return Unknown(f"{path} did not answer" if self._guard.hung(path) else f"{path} is no path")
        return answer

    def listdir(self, path: str) -> tuple[str, ...]:
        """Sorted names; empty where there is no folder or it cannot be read."""
        return self._guard.call(path, lambda: _names(path)) or ()

    def readlink(self, path: str) -> str | None:
        """The text of a symbolic link."""
        return self._guard.call(path, lambda: os.readlink(path))

    def exists(self, path: str) -> bool:
        """Whether anything is at a path, a link to nothing included."""
        return bool(self._guard.call(path, lambda: os.path.lexists(path)))

    def realpath(self, path: str) -> str:
        """The path with its links resolved."""
        return self._guard.call(path, lambda: os.path.realpath(path)) or path

    def stat(self, path: str) -> tuple[int, int | None] | None:
        """Bytes and owner of a file, not of what a link points to."""
        return self._guard.call(path, lambda: _size_and_owner(path))


def _size_and_owner(path: str) -> tuple[int, int | None]:
    found = os.lstat(path)
    return found.st_size, found.st_uid


def _names(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        names = [entry.name for _, entry in zip(range(NAME_LIMIT), entries, strict=False)]
    return tuple(sorted(n.encode("utf-8", "replace").decode("utf-8") for n in names))


def _read(path: str, limit: int) -> bytes | Unknown:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return Unknown(f"{path} is no file")
        handle = os.open(path, OPEN)
    except OSError as error:
        return _refused(path, error)
    try:
        return _drain(lambda: os.read(handle, CHUNK), limit)
    except OSError as error:
        return _refused(path, error)
    finally:
        os.close(handle)


def _drain(read: Callable[[], bytes], limit: int) -> bytes:
    """A file of /proc comes in pieces of the kernel's choice, so that one read is not enough."""
    data = bytearray()
    while len(data) < limit:
        piece = read()
        if not piece:
            break
        data += piece
    return bytes(data[:limit])


def _refused(path: str, error: OSError) -> Unknown:
    return Unknown(
        f"{path}: {error.strerror}", absent=isinstance(error, (FileNotFoundError, NotADirectoryError))
    )
