"""Dumps and snapshots out of archives and pipes, laid out as files for the children that read them.

A folder that its owner alone can read is made when the first one comes, and removed with the `Spool`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import weakref

from fsdp_doctor.diagnosis.readers.sources import LATE, Unreadable
from fsdp_doctor.diagnosis.readers.streams import Stream

LARGEST = 4 << 30
"""Bytes of one file."""
TOTAL = 8 << 30
KEEP_FREE = 0.5
"""Share of the free space of the temporary folder that is left alone."""
FILES = 20_000
_PARTS = 6
_NAME = 120


class Spool:
    """Files by the names of the streams that they hold."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Path of a file -> name of the stream that it holds, such as `logs.tar:host-a/nccl_trace_rank_3`."""
        self._folder = ""
        self._numbers = itertools.count()
        self._room = 0

    def keep(self, stream: Stream, until: float | None = None) -> str:
        """Write a stream down and return the file's path.

        Raises `Unreadable` where it is cut or too large, or its end does not come in time.
        """
        if len(self.names) >= FILES:
            raise Unreadable(f"more than {FILES} dumps in archives: the rest was not read")
        try:
            path = self._place(stream.name)
            self._write(stream, path, until)
        except OSError as error:
            raise Unreadable(f"could not be unpacked to {tempfile.gettempdir()}: {error.strerror}") from None
        self.names[path] = stream.name
        return path

    def _place(self, name: str) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="fsdp-doctor-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            free = shutil.disk_usage(self._folder).free
            self._room = min(TOTAL, int(free * (1 - KEEP_FREE)))
        parts = [p for p in name.replace(":", "/").replace("\0", "").split("/") if p not in ("", ".", "..")]
        # A folder of its own for each, so that no two meet; the names say whose rank a file is.
        folder = os.path.join(
            self._folder, str(len(os.listdir(self._folder))), *(p[:_NAME] for p in parts[-_PARTS:-1])
        )
        os.makedirs(folder)
        return os.path.join(folder, parts[-1][-_NAME:] if parts else "stdin")

    def _write(self, stream: Stream, path: str, until: float | None) -> None:
        written = 0
        try:
            with open(path, "xb") as file:
                for chunk in stream.chunks:
                    written += len(chunk)
                    if written > min(LARGEST, self._room):
                        raise Unreadable("is too large to be unpacked: unpack it, and give it as a file")
                    if until is not None and time.monotonic() > until:
                        raise Unreadable(LATE)
                    file.write(chunk)
        except (Unreadable, OSError):
            if os.path.exists(path):
                os.unlink(path)
            raise
        self._room -= written
