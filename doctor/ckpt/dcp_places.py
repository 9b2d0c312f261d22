"""The entries of DCP's storage_data as columns of numbers: which chunk lies where."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter

from fsdp_doctor.ckpt.dcp_records import Irregular, Place

DIMS = 64
"""As `stub.numbers` has it."""
NEAR = 1 << 30
"""Positions of a chunk that can be right."""
LIMIT = 1 << 62
PLACE_FIELDS = ("relative_path", "offset", "length")
PLACED = itemgetter(*PLACE_FIELDS)


class Numbers:
    """Whole numbers from zero up, in four bytes each, or in eight from the first that needs them."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: array[int] = array("I")

    def extend(self, values: Sequence[int]) -> None:
        """Add some. Raises `OverflowError` for what is negative or too large, and `TypeError`."""
        if self.held.typecode == "I":
            try:
                self.held.extend(array("I", values))
                return
            except OverflowError:
                self.held = array("Q", self.held)
        if max(values, default=0) >= LIMIT:
            raise OverflowError
        self.held.extend(array("Q", values))


def wide(column: array[int]) -> array[int]:
    """The same numbers in eight bytes with a sign. Not one by one: that takes twenty times as long."""
    if column.itemsize == 4:
        twice = array(column.typecode, bytes(8 * len(column)))
        twice[sys.byteorder == "big" :: 2] = column
        column = twice
    return array("q", column.tobytes())


class Numbered(dict[str, int]):
    """Texts and the positions at which they first came."""

    def __missing__(self, key: object) -> int:
        """A new one."""
        if type(key) is not str:
            raise TypeError
        at = self[key] = len(self)
        return at


class Places:
    """All entries of storage_data, a row each."""

    __slots__ = ("dims", "file", "hint", "key", "keys", "length", "offset", "paths", "start", "transformed")

    def __init__(self) -> None:
        self.keys, self.paths = Numbered(), Numbered()
        self.key, self.hint, self.file = array("i"), array("i"), array("I")
        """Position in `keys`; position among the tensor's chunks or -1; position in `paths`."""
        self.dims = array("b")
        """Of the offset; -1 for what is no tensor."""
        self.offset, self.start, self.length = Numbers(), Numbers(), Numbers()
        self.transformed = False

    def __len__(self) -> int:
        """Entries."""
        return len(self.key)

    def add(self, index: list[dict[str, object]], info: list[dict[str, object]]) -> None:
        """States of as many indices as places. Raises `Irregular` and what `Numbers` raises."""
        if not index:
            return
        keys, offsets, hints = zip(*_indices(index), strict=True)
        paths, starts, lengths = zip(*map(PLACED, info), strict=True)
        only(hints, int, type(None))
        kinds = only(offsets, tuple, type(None))
        flat = tuple(chain.from_iterable(offsets if len(kinds) == 1 else filter(None, offsets)))
        for values in (flat, starts, lengths):
            only(values, int)
        dims = [-1 if o is None else len(o) for o in offsets]
        if max(dims) > DIMS:
            raise Irregular
        if not self.transformed and max(map(len, info)) > len(PLACE_FIELDS):
            self.transformed = any(s.get("transform_descriptors") for s in info)
        self.key.extend(array("i", list(map(self.keys.__getitem__, keys))))
        self.file.extend(array("I", list(map(self.paths.__getitem__, paths))))
        self.hint.extend(array("i", [-1 if h is None or not 0 <= h < NEAR else h for h in hints]))
        self.dims.extend(array("b", dims))
        self.offset.extend(flat)
        self.start.extend(starts)
        self.length.extend(lengths)

    def __iter__(self) -> Iterator[Place]:
        """One after the other."""
        keys, paths, at = list(self.keys), list(self.paths), 0
        columns = zip(
            self.key, self.hint, self.dims, self.file, self.start.held, self.length.held, strict=True
        )
        for key, hint, dims, file, start, length in columns:
            offset = None
            if dims >= 0:
                offset = tuple(self.offset.held[at : at + dims])
                at += dims
            yield keys[key], offset, hint, paths[file], start, length, self.transformed


def _indices(states: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    """Key, offset and position; of what is no tensor, and of old versions, some are not there."""
    try:
        return [(s["fqn"], s["offset"], s["index"]) for s in states]
    except KeyError:
        return [(s.get("fqn"), s.get("offset"), s.get("index")) for s in states]


def only(values: Sequence[object], *kinds: type) -> set[type]:
    """Their types. A bool is an int in Python, and none in a shape: types are compared as they are."""
    found = set(map(type, values))
    if not found <= set(kinds):
        raise Irregular
    return found
