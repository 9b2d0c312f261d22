"""An index as bytes, from the child that reads to the process that asked: JSON, then the chunks' columns."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import cast, get_type_hints

from fsdp_doctor.codec import FormatError, from_json, to_json
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Tensor
from fsdp_doctor.subjects.checkpoint_chunks import ChunkColumns

LENGTH = 8
"""Bytes of the JSON's length in front of it, little-endian."""


def encode(index: CheckpointIndex) -> list[bytes]:
    """The bytes, in pieces: columns may be many megabytes."""
    top = cast("dict[str, object]", to_json(replace(index, tensors=())))
    tensors: list[object] = []
    columns: list[bytes] = []
    for tensor in index.tensors:
        plain = cast("dict[str, object]", to_json(replace(tensor, chunks=())))
        if isinstance(tensor.chunks, ChunkColumns) and tensor.chunks.place:
            raw = tensor.chunks.place.tobytes()
            plain["columns"] = len(raw)
            columns.append(raw)
        tensors.append(plain)
    top["tensors"] = tensors
    text = json.dumps(top, separators=(",", ":")).encode()
    return [len(text).to_bytes(LENGTH, "little"), text, *columns]


def decode(raw: bytes) -> CheckpointIndex:
    """The index. Raises `FormatError` for anything that `encode` does not make."""
    view = memoryview(raw)
    size = int.from_bytes(view[:LENGTH], "little")
    if len(view) < LENGTH + size or not size:
        raise FormatError(": the answer is cut short")
    try:
        top = json.loads(bytes(view[LENGTH : LENGTH + size]))
    except ValueError as error:
        raise FormatError(f": {error}") from None
    if not isinstance(top, dict) or not isinstance(top.get("tensors", []), list):
        raise FormatError(": no object")
    at = LENGTH + size
    tensors: list[Tensor] = []
    for plain in top.pop("tensors", []):
        if not isinstance(plain, dict):
            raise FormatError(".tensors: no object")
        length = plain.pop("columns", 0)
        if type(length) is not int or not 0 <= length <= len(view) - at:
            raise FormatError(".tensors: columns are cut short")
        tensors.append(_tensor(plain, view[at : at + length]))
        at += length
    hints = _hints(CheckpointIndex)
    plain_fields = {n: _field(hints, n, v) for n, v in top.items() if n in hints}
    return CheckpointIndex(**plain_fields, tensors=tuple(tensors))  # type: ignore[arg-type]


def _tensor(plain: Mapping[str, object], columns: memoryview) -> Tensor:
    hints = _hints(Tensor)
    values = {n: _field(hints, n, v) for n, v in plain.items() if n in hints}
    place: array[int] = array("q")
    try:
        place.frombytes(columns)
        made = Tensor(**values)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise FormatError(f".tensors: {error}") from None
    chunks = ChunkColumns(len(made.shape), place)
    if len(place) % (2 * len(made.shape) + 4):
        raise FormatError(".tensors: columns do not fit the shape")
    return replace(made, chunks=chunks)


def _field(hints: Mapping[str, object], name: str, value: object) -> object:
    return from_json(cast("type[object]", hints[name]), value)


@cache
def _hints(kind: type[object]) -> dict[str, object]:
    hints = get_type_hints(kind)
    skipped = ("chunks", "tensors")
    return {f.name: hints[f.name] for f in fields(kind) if f.name not in skipped}  # type: ignore[arg-type]
