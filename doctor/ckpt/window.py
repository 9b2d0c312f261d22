"""A part of a file that looks like a file of its own."""

from __future__ import annotations

import io
from typing import BinaryIO


class Window(io.RawIOBase):
    """Bytes `start` to `start + length` of another file, which stays open when this is closed."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        super().__init__()
        self._file, self._start, self._length = file, start, length
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """From the window's beginning."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; positions count from the window's beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise OSError("a place before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        """Fill a buffer as far as the window reaches."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        wanted = max(0, min(len(view), self._length - self._at))
        self._file.seek(self._start + self._at)
        raw = self._file.read(wanted)
        view[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)
