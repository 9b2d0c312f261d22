"""The header of a safetensors file: a JSON object behind its length, checked against the file's size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO

from fsdp_doctor.ckpt.limits import HEADER_BYTES
from fsdp_doctor.tables.torch_dtypes import SAFETENSORS, item_bytes


class HeaderError(Exception):
    """It is no whole safetensors file; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor. `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Header:
    """All tensors of a file in the order of their bytes."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    end: int = 0
    """The byte after the last tensor: what the file must have."""
    wrong: tuple[str, ...] = ()
    """Tensors whose bytes do not fit their shape, or that overlap or leave a gap."""


def read(file: BinaryIO, size: int) -> Header:
    """Read a header. Raises `HeaderError`; whether the file is as long as it says is the caller's to see."""
    first = file.read(8)
    if len(first) < 8:
        raise HeaderError(f"{size} bytes: too short for a safetensors file")
    length = int.from_bytes(first, "little")
    if length > HEADER_BYTES:
        raise HeaderError(f"it claims a header of {length} bytes; the format allows {HEADER_BYTES}")
    if 8 + length > size:
        raise HeaderError(f"its header needs {8 + length} bytes, the file has {size}")
    raw = file.read(length)
    try:
        top = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"its header is no JSON: {str(error)[:120]}") from None
    if not isinstance(top, dict):
        raise HeaderError("its header is no JSON object")
    extra = top.pop("__metadata__", None)
    metadata = {k: v for k, v in extra.items() if isinstance(v, str)} if isinstance(extra, dict) else {}
    entries, wrong = [], []
    for name, value in top.items():
        entry = _entry(name, value, 8 + length)
        if entry is None:
            wrong.append(name[:200])
        else:
            entries.append(entry)
            if prod(entry.shape) * (item_bytes(entry.dtype) or 1) != entry.length and item_bytes(entry.dtype):
                wrong.append(name[:200])
    entries.sort(key=lambda e: (e.start, e.length))
    end = 8 + length
    for entry in entries:
        if entry.start != end:
            wrong.append(entry.name[:200])
        end = max(end, entry.start + entry.length)
    return Header(tuple(entries), metadata, end, tuple(dict.fromkeys(wrong)))


def _entry(name: str, value: object, base: int) -> Entry | None:
    if not isinstance(value, dict):
        return None
    shape, offsets, dtype = value.get("shape"), value.get("data_offsets"), value.get("dtype")
    if not (isinstance(shape, list) and isinstance(offsets, list) and isinstance(dtype, str)):
        return None
    if len(offsets) != 2 or not all(type(n) is int and 0 <= n < 1 << 62 for n in [*shape, *offsets]):
        return None
    start, end = offsets
    if end < start or len(shape) > 64:
        return None
    return Entry(name, SAFETENSORS.get(dtype, dtype[:40]), tuple(shape), base + start, end - start)
