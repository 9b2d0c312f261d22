"""The target while it is written: beside its place, in units that outlive an interruption."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from fsdp_doctor.ckpt.checksums import combined
from fsdp_doctor.ckpt.convert.cursor import BLOCK, Piece
from fsdp_doctor.ckpt.convert.model import ConvertError

JOURNAL = "journal"
EVERY = 64 << 20
"""Bytes after which what is done is noted."""
Done = Callable[[int], None]


class Output:
    """A folder or a file that appears when it is whole.

    `unit` writes one piece; what an interrupted run has written is compared with its checksums and kept.
    """

    def __init__(self, target: str, folder: bool, plan: str, progress: Done = lambda done: None) -> None:
        """`plan` identifies source and options: only a run of the same plan is resumed."""
        self.target, self.folder = Path(target), folder
        parent, name = os.path.split(os.path.abspath(target))
        self.work = Path(parent) / f".{name}.converting"
        self._progress = progress
        self._file: BinaryIO | None = None
        self._name = ""
        self._size = self._crc = 0
        self._pending: list[str] = []
        self._since = 0
        self._pool = ThreadPoolExecutor(1)
        self._number = 0
        self.resumed = 0
        """Bytes that were there already."""
        self._done = self._begin(plan)

    def _begin(self, plan: str) -> list[tuple[str, int, int, int]]:
        """Take up what a run before has left, as far as it is whole; start anew otherwise."""
        os.makedirs(self.work.parent, exist_ok=True)
        journal = self.work / JOURNAL
        lines: list[str] = []
        if journal.is_file() and not self.work.is_symlink():
            lines = journal.read_text("utf-8", "replace").splitlines()
        if not lines or lines[0] != plan:
            if self.work.is_symlink() or self.work.exists():
                shutil.rmtree(
                    self.work
                ) if self.work.is_dir() and not self.work.is_symlink() else self.work.unlink()
            os.makedirs(self.work / "files")
            journal.write_text(plan + "\n", "utf-8")
            return []
        kept = _whole(self.work / "files", lines[1:])
        journal.write_text("\n".join([plan, *(json.dumps(line) for line in kept)]) + "\n", "utf-8")
        self.resumed = sum(line[2] for line in kept)
        return kept

    def unit(self, name: str, write: Callable[[], None]) -> tuple[int, int]:
        """Append one piece to a file of the target. (length, CRC-32) of it.

        `write` uses `raw` and `values`; it is not called where the piece is there already.
        """
        number = self._number
        self._number += 1
        if number < len(self._done):
            file, _, length, crc = self._done[number]
            assert file == name
            self._progress(length)
            return length, crc
        self._switch(name)
        first, self._crc = self._size, 0
        write()
        length = self._size - first
        self._pending.append(json.dumps([name, self._size, length, self._crc]))
        self._since += length
        if self._since >= EVERY:
            self._note()
        return length, self._crc

    @property
    def known(self) -> bool:
        """Whether the next unit is there already."""
        return self._number < len(self._done)

    def place(self) -> int:
        """Bytes of the file that is being written."""
        return self._size

    def raw(self, data: bytes) -> int:
        """Write bytes; the place after them."""
        assert self._file is not None
        for at in range(0, len(data), BLOCK):
            block = memoryview(data)[at : at + BLOCK]
            self._put(block, zlib.crc32(block))
        return self._size

    def values(self, pieces: Iterable[Piece]) -> int:
        """Write pieces of a tensor; the CRC-32 of all of them."""
        total = 0
        for view, known in pieces:
            future: Future[int] = known if known is not None else self._pool.submit(zlib.crc32, view)
            assert self._file is not None
            _all(self._file, view)
            crc = future.result()
            total = combined(total, crc, len(view))
            self._count(crc, len(view))
        return total

    def _put(self, view: memoryview, crc: int) -> None:
        assert self._file is not None
        _all(self._file, view)
        self._count(crc, len(view))

    def _count(self, crc: int, length: int) -> None:
        self._crc = combined(self._crc, crc, length)
        self._size += length
        self._progress(length)

    def _switch(self, name: str) -> None:
        if name == self._name:
            return
        self._close()
        path = self.work / "files" / name
        self._size = max((size for file, size, _, _ in self._done if file == name), default=0)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        os.ftruncate(handle, self._size)
        self._file = os.fdopen(handle, "r+b", buffering=0)
        self._file.seek(self._size)
        self._name = name

    def _note(self) -> None:
        with open(self.work / JOURNAL, "a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in self._pending))
        self._pending, self._since = [], 0

    def _close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._note()

    def small(self, name: str, data: bytes) -> None:
        """A file of its own, such as an index; written anew by each run."""
        with open(self.work / "files" / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def discard(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def finish(self) -> None:
        """Put the target in its place."""
        self._close()
        written = self.work / "files"
        for path in written.iterdir():  # also those that a run before has closed
            _sync(path)
        source = written if self.folder else next(iter(written.iterdir()))
        _sync(written)
        if os.path.lexists(self.target):
            raise ConvertError(f"{self.target} exists: something has put it there in the meantime")
        os.rename(source, self.target)
        _sync(self.target.absolute().parent)
        shutil.rmtree(self.work, ignore_errors=True)


def _whole(files: Path, lines: list[str]) -> list[tuple[str, int, int, int]]:
    """The units whose bytes are there and match their checksum, up to the first that does not."""
    kept: list[tuple[str, int, int, int]] = []
    for line in lines:
        try:
            name, size, length, crc = json.loads(line)
            with open(files / os.path.basename(name), "rb") as file:
                file.seek(size - length)
                seen, left = 0, length
                while left:
                    block = file.read(min(BLOCK, left))
                    if not block:
                        return kept
                    seen = zlib.crc32(block, seen)
                    left -= len(block)
        except (ValueError, TypeError, OSError):
            return kept
        if seen != crc:
            return kept
        kept.append((name, size, length, crc))
    return kept


def _all(file: BinaryIO, view: memoryview) -> None:
    while len(view):
        view = view[file.write(view) :]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
