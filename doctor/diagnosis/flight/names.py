"""Which files are dumps, and whose: torch names them PREFIX + rank, users and tools name them anyhow."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

HEAD = 4096
FILES = 65536
"""Files looked at below one folder."""
_RANK = re.compile(r"rank[_\-=. ]{0,2}(\d{1,7})", re.IGNORECASE)
_LAST = re.compile(r"(\d{1,7})(?:\.[A-Za-z][A-Za-z0-9]{0,6}){0,3}$")
_DUMP_NAME = re.compile(
    r"(?:nccl|comm_lib|fr|flight|pg|gloo)[_\-]?(?:recorder)?[_\-]?(?:trace|dump)", re.IGNORECASE
)
_MARKS = (
    b"pg_config",
    b"pg_status",
    b"profiling_name",
    b"nccl_comm_state",
    b"comm_lib_version",
    b"record_id",
)


def rank_of(path: str) -> int | None:
    """The rank that a file's name, or else its folder's, gives; None where neither has a number."""
    name = os.path.basename(path)
    for found in (_RANK.findall(name)[-1:], _LAST.findall(name)):
        if found:
            return int(found[0])
    folder = _RANK.findall(os.path.basename(os.path.dirname(path)))
    return int(folder[-1]) if folder else None


def looks_like_dump(name: str, head: bytes) -> bool:
    """Whether a file with these first bytes (some 4 KiB) is worth reading as a dump.

    A pickle that shows none of the recorder's words is one by its name only.
    """
    start = head.lstrip()[:1]
    if head[:2] == b"\x1f\x8b":
        return bool(_DUMP_NAME.search(name))
    if head[:1] == b"\x80":
        return any(mark in head for mark in _MARKS) or bool(_DUMP_NAME.search(os.path.basename(name)))
    if start in (b"{", b"["):
        return any(mark in head for mark in _MARKS) and (b"profiling_name" in head or b'"entries"' in head)
    return not head and bool(_DUMP_NAME.search(os.path.basename(name)))


def candidates(paths: Iterable[str]) -> tuple[str, ...]:
    """Files that look like dumps: those given, and those below folders given."""
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.isdir(path):
            found[path] = None
            continue
        seen = 0
        for folder, folders, files in os.walk(path):
            folders.sort()
            for name in sorted(files):
                seen += 1
                full = os.path.join(folder, name)
                if seen <= FILES and looks_like_dump(name, _head(full)):
                    found[full] = None
    return tuple(found)


def _head(path: str) -> bytes:
    try:
        if not os.path.isfile(path):  # a pipe or a device would wait for ever
            return b"?"
        with open(path, "rb") as file:
            return file.read(HEAD)
    except OSError:
        return b"?"
