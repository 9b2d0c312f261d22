"""Writes beside each chunk of DCP's metadata where it lies: file, start and length."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING

from fsdp_doctor.ckpt.dcp_places import DIMS, LIMIT, Places
from fsdp_doctor.ckpt.dcp_records import Place

if TYPE_CHECKING:
    from fsdp_doctor.ckpt.dcp_metadata import Metadata, MetaTensor


OFFSETS = (*range(DIMS + 1), 0)
"""Numbers of an offset by its dimensions; the last is for -1."""


def place(found: Metadata, places: Iterable[Place | None]) -> None:
    """Fill in the rows of all tensors, the places of what is no tensor, and the files' items."""
    one = _One(found)
    if isinstance(places, Places):
        _columns(found, places, one)
        return
    files: dict[str, int] = {}
    for entry in places:
        if entry is None:
            found.unknown_items += 1
            continue
        key, offset, hint, path, start, length, more = entry
        if not (0 <= start < LIMIT and 0 <= length < LIMIT):
            found.unknown_items += 1
            continue
        found.transformed = found.transformed or more
        file = files.get(path)
        if file is None:
            file = files[path] = len(files)
            found.starts.append(array("q"))
            found.lengths.append(array("q"))
        found.starts[file].append(start)
        found.lengths[file].append(length)
        one.put(key, offset, hint, file, start, length)
    found.paths = list(files)


def _columns(found: Metadata, places: Places, one: _One) -> None:
    """The same for a million entries: nearly all say themselves which chunk they are of."""
    found.paths, found.transformed = list(places.paths), places.transformed
    found.starts = [array("q") for _ in found.paths]
    found.lengths = [array("q") for _ in found.paths]
    put_start, put_length = [a.append for a in found.starts], [a.append for a in found.lengths]
    for file, start, length in zip(places.file, places.start.held, places.length.held, strict=True):
        put_start[file](start)
        put_length[file](length)
    # Columns are told apart by key, and each key's entries by what they say of themselves.
    order = sorted(range(len(places)), key=places.key.__getitem__)
    offset_at = list(accumulate(map(OFFSETS.__getitem__, places.dims), initial=0))
    counts, at = Counter(places.key), 0
    for number, key in enumerate(places.keys):
        own = order[at : at + counts[number]]
        at += len(own)
        tensor = found.tensors.get(key)
        if tensor is not None and _regular(tensor, places, offset_at, own):
            continue
        for i in own:
            dims = places.dims[i]
            offset = None if dims < 0 else tuple(places.offset.held[offset_at[i] : offset_at[i] + dims])
            one.put(key, offset, places.hint[i], places.file[i], places.start.held[i], places.length.held[i])


def _regular(tensor: MetaTensor, places: Places, offset_at: list[int], own: list[int]) -> bool:
    """Place one entry per chunk, where each names the chunk's position and offset; else do nothing."""
    rows, dims, count = tensor.rows, len(tensor.shape), len(own)
    width = 2 * dims + 4
    if count < 2 or len(rows) != count * width:
        return False
    own = sorted(own, key=places.hint.__getitem__)
    pick = itemgetter(*own)
    if pick(places.hint) != tuple(range(count)) or set(pick(places.dims)) != {dims}:
        return False
    held, at = places.offset.held, pick(offset_at)
    if any(array("q", [held[i + d] for i in at]) != rows[d::width] for d in range(dims)):
        return False
    for column, values in enumerate((places.file, places.start.held, places.length.held), 2 * dims):
        rows[column::width] = array("q", pick(values))
    return True


class _One:
    """Places entries one by one."""

    def __init__(self, found: Metadata) -> None:
        self._found = found
        self._searched: dict[str, dict[tuple[int, ...], int]] = {}

    def put(
        self, key: str, offset: tuple[int, ...] | None, hint: int, file: int, start: int, length: int
    ) -> None:
        """`hint` is the position among the tensor's chunks that the entry names, or -1."""
        found = self._found
        tensor = found.tensors.get(key)
        if tensor is None:
            if offset is None:
                found.blob_places[key] = (file, start, length)
            else:
                found.unknown_items += 1
            return
        rows, dims = tensor.rows, len(tensor.shape)
        if offset is None:
            at = 0
        else:
            at = hint * (2 * dims + 4)
            if hint < 0 or tuple(rows[at : at + dims]) != offset or (dims and at >= len(rows)):
                if key not in self._searched:
                    self._searched[key] = _rows_by_offset(tensor)
                at = self._searched[key].get(offset, -1)
        if at < 0 or at >= len(rows):
            found.unknown_items += 1
            return
        at += 2 * dims
        rows[at], rows[at + 1], rows[at + 2] = file, start, length


def _rows_by_offset(tensor: MetaTensor) -> dict[tuple[int, ...], int]:
    dims = len(tensor.shape)
    width = 2 * dims + 4
    return {tuple(tensor.rows[i : i + dims]): i for i in range(0, len(tensor.rows), width)}
