"""Writes beside each chunk of DCP's metadata where it lies: file, start and length."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from fsdp_doctor.ckpt.dcp_places import DIMS, LIMIT, Places, wide
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
    found.starts, found.lengths = _by_file(places, len(found.paths))
    # Columns are told apart by key, and each key's entries by what they say of themselves.
    order = sorted(range(len(places)), key=places.key.__getitem__)
    at = array("q", accumulate(map(OFFSETS.__getitem__, places.dims), initial=0))
    counts, done = Counter(places.key), 0
    for number, key in enumerate(places.keys):
        own = order[done : done + counts[number]]
        done += len(own)
        tensor = found.tensors.get(key)
        if tensor is not None and len(own) > 1 and _regular(tensor, places, at, own):
            continue
        for i in own:
            dims = places.dims[i]
            offset = None if dims < 0 else tuple(places.offset.held[at[i] : at[i] + dims])
            one.put(key, offset, places.hint[i], places.file[i], places.start.held[i], places.length.held[i])


def _by_file(places: Places, files: int) -> tuple[list[array[int]], list[array[int]]]:
    """Starts and lengths of each file's items."""
    file, starts, lengths = places.file, places.start.held, places.length.held
    counts, runs = Counter(file), array("I")
    for number in range(files):
        runs.extend(array("I", (number,)) * counts[number])
    if runs == file:  # one file after the other
        ends = accumulate((counts[n] for n in range(files)), initial=0)
        parts = [slice(a, b) for a, b in pairwise(ends)]
        return [wide(starts[p]) for p in parts], [wide(lengths[p]) for p in parts]
    found = [array("q") for _ in range(files)], [array("q") for _ in range(files)]
    put_start, put_length = ([a.append for a in half] for half in found)
    for number, start, length in zip(file, starts, lengths, strict=True):
        put_start[number](start)
        put_length[number](length)
    return found


def _regular(tensor: MetaTensor, places: Places, at: array[int], own: Sequence[int]) -> bool:
    """Place one entry per chunk, where each names the chunk's position and offset; else do nothing.

    `at` is where each entry's numbers begin among all offsets.
    """
    rows, dims, count = tensor.rows, len(tensor.shape), len(own)
    width = 2 * dims + 4
    if len(rows) != count * width:
        return False
    own, counting = _stepped(own), _counting(count)
    if _pick(places.hint, own) != counting:
        own = _stepped(sorted(own, key=places.hint.__getitem__))
        if _pick(places.hint, own) != counting:
            return False
    if _pick(places.dims, own) != array("b", (dims,)) * count:
        return False
    first = _stepped(_pick(at, own))
    for d in range(dims):
        found = _pick(places.offset.held, _moved(first, d))
        if wide(found) != rows[d::width]:
            return False
    for column, values in enumerate((places.file, places.start.held, places.length.held), 2 * dims):
        rows[column::width] = wide(_pick(values, own))
    return True


def _moved(positions: Sequence[int], by: int) -> Sequence[int]:
    if isinstance(positions, range):
        return range(positions.start + by, positions.stop + by, positions.step)
    return [i + by for i in positions]


def _stepped(positions: Sequence[int]) -> Sequence[int]:
    """As a range where they are equally far apart: as they are where every rank has a part of each tensor."""
    step = positions[1] - positions[0]
    if step > 0:
        steps = range(positions[0], positions[0] + step * len(positions), step)
        if positions[-1] == steps[-1] and array("q", positions) == array("q", steps):
            return steps
    return positions


def _pick(column: array[int], positions: Sequence[int]) -> array[int]:
    """Some of its numbers; a slice takes a tenth of the time."""
    if isinstance(positions, range):
        return column[positions.start : positions.stop : positions.step]
    return array(column.typecode, itemgetter(*positions)(column))


@lru_cache(8)
def _counting(count: int) -> array[int]:
    return array("i", range(count))


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
