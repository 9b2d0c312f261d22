"""Take secrets out of what the launcher itself has written, once nobody writes any more."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fsdp_doctor.facts.redact import Redactor

FILE_LIMIT = 64 << 20
"""Bytes of one file; a larger one is left as it is, and named."""
SECONDS = 30.0


def redact(paths: Iterable[Path]) -> tuple[str, ...]:
    """Redact text files in place, each as a whole or not at all; the names of those that were left."""
    redactor = Redactor()
    until = time.monotonic() + SECONDS
    left = []
    for path in paths:
        try:
            if time.monotonic() > until or path.stat().st_size > FILE_LIMIT:
                left.append(str(path))
                continue
            before = path.read_bytes()
            after = redactor.text(before.decode("latin-1")).encode("latin-1", "replace")
            if after != before:
                _replace(path, after)
        except OSError:
            left.append(str(path))
    return tuple(left)


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
