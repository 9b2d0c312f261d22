"""A large snapshot of CUDA memory, which is not held: its blocks, and the first time that memory ran out.

The history of allocations makes most of such a file, and only its out-of-memory entries are asked of it. The
blocks come first: what is before the key of the history is a pickle of its own once it is closed. Texts and
frames that the history refers to were, but for a few, met among the blocks.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Mapping
from typing import BinaryIO

from . import plain, snapshot

KEY = b"\x8c\x0ddevice_traces"
OOM = b"\x8c\x03oom"
BLOCKS_LIMIT = 512 << 20
"""Bytes before the history."""
CHUNK = 1 << 22
ENTRY = 1 << 18
"""Bytes of one entry of the history with its frames."""
PARTIAL = "its blocks and its first out-of-memory entry were read, the rest of its history was not"
_FRAME = 0x95


def read(path: str) -> dict[str, object] | None:
    """The answer for a file; None where it is no such snapshot.

    Raises `plain.Refused`, `plain.Cut` and `OSError`.
    """
    with open(path, "rb") as file:
        if not _is_snapshot(file.read(256)):
            return None
        at = _find(file, KEY, 0, BLOCKS_LIMIT)
        if at is None:
            return None
        file.seek(0)
        root, memo = _closed(file.read(at))
        told = snapshot.summed({**root, "device_traces": []}, "pickle", "")
        if told is None:
            return None
        entry = _oom(file, at, memo)
    if entry is not None:
        devices: list[dict[str, int]] = told["devices"]  # type: ignore[assignment]
        device = max(devices, key=lambda d: d["allocated"], default={"device": 0})["device"]
        told["ooms"] = snapshot.ooms([*([] for _ in range(device)), [{**entry, "action": "oom"}]])
    return {**told, "partial": PARTIAL}


def _is_snapshot(head: bytes) -> bool:
    return head[:1] == b"\x80" and b"segments" in head


def _find(file: BinaryIO, wanted: bytes, start: int, limit: int) -> int | None:
    """Where `wanted` is, at most `limit` bytes from `start`."""
    file.seek(start)
    at, rest = start, b""
    while at - start < limit and (data := file.read(CHUNK)):
        found = (rest + data).find(wanted)
        if found >= 0:
            return at - len(rest) + found
        at += len(data)
        rest = (rest + data)[-len(wanted) :]
    return None


def _closed(part: bytes) -> tuple[dict[object, object], Mapping[int, object]]:
    """The dictionary that a pickle had begun when it was cut before a key, and what it had memoised."""
    data = bytearray(part + b"u.")
    at = 2
    while at + 9 <= len(data) and data[at] == _FRAME:
        (size,) = struct.unpack_from("<Q", data, at + 1)
        if at + 9 + size > len(data):
            struct.pack_into("<Q", data, at + 1, len(data) - at - 9)
        at += 9 + size
    reader = plain.Plain(io.BytesIO(data))
    try:
        root = reader.load()
    except (plain.Refused, MemoryError):
        raise
    except Exception as error:
        raise plain.Cut(f"{type(error).__name__}: {error}"[:200]) from None
    memo: Mapping[int, object] = reader.memo.copy()
    return (root if isinstance(root, dict) else {}), memo


def _oom(file: BinaryIO, start: int, memo: Mapping[int, object]) -> dict[object, object] | None:
    """The first out-of-memory entry: the word is written out in it alone, the next ones refer to it."""
    at = _find(file, OOM, start, 1 << 62)
    if at is None:
        return None
    file.seek(max(at - 32, 0))
    data = file.read(ENTRY)
    begin = data.rfind(b"}\x94(", 0, at - max(at - 32, 0))
    if begin < 0:
        return None
    machine = _Entry(data[begin:], memo)
    with contextlib.suppress(plain.Cut, plain.Refused, IndexError, KeyError, struct.error):
        while machine.step() and not machine.ended:
            pass
    found = machine.unwind()
    return found if isinstance(found, dict) else None


class _Entry(plain.Machine):
    """Reads one dictionary out of the middle of a pickle."""

    def __init__(self, data: bytes, memo: Mapping[int, object]) -> None:
        super().__init__(data)
        self.memo = _Known(memo)
        self.ended = False

    def _run(self, code: bytes) -> None:
        if code == b"\x94":  # its number is not known here
            return
        super()._run(code)
        self.ended = code == b"u" and len(self.stack) == 1


class _Known(dict[int, object]):
    """What is not known is nothing."""

    def __missing__(self, key: int) -> object:
        return None
