"""The output of a command: passed on at once and unchanged, and kept line by line without secrets."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fsdp_doctor.facts.redact import Redactor

LINE_LIMIT = 1 << 20
"""Bytes after which a line is kept as if it had ended, so that memory does not grow."""
CHUNK = 1 << 16


class Console:
    """What is kept of both streams, in the order in which their lines ended."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._redactor = Redactor()
        self._partial: dict[int, bytearray] = {}
        self._deaf: set[int] = set()
        self.bytes = 0
        """Output so far, of both streams."""
        self._file: BinaryIO | None = None
        try:
            self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            self._lose(error)

    def take(self, source: int, data: bytes, target: int) -> None:
        """Data came from the stream `source`: it goes to the descriptor `target` and into the file."""
        self.bytes += len(data)
        self._pass_on(data, target)
        partial = self._partial.setdefault(source, bytearray())
        partial += data
        end = partial.rfind(b"\n") + 1
        if end == 0 and len(partial) > LINE_LIMIT:
            end = len(partial)
        if end:
            self._keep(bytes(partial[:end]))
            del partial[:end]

    def close(self) -> None:
        """Keep what did not end in a new line, and close the file."""
        for partial in self._partial.values():
            if partial:
                self._keep(bytes(partial) + b"\n")
        self._partial.clear()
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            except OSError as error:
                self._lose(error)
            self._file = None

    def _pass_on(self, data: bytes, target: int) -> None:
        """A reader that has gone (`| head`) is no reason to disturb the job."""
        if target in self._deaf:
            return
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:
                select.select([], [target], [], 1.0)
            except OSError as error:
                self._deaf.add(target)
                if error.errno != errno.EPIPE:
                    self._complain(f"the output is not shown any more: {error.strerror}")
                return

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            text = data.decode("latin-1")  # each byte is a character: nothing else changes
            self._file.write(self._redactor.text(text).encode("latin-1", "replace"))
            self._file.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._file = None
        self._complain(f"the output is not kept: {error.strerror or error}; the command goes on")
