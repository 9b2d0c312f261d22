"""`Columns`: of DCP's records only the numbers are kept, in batches, without a call of Python per record.

While the unpickler runs, the states of chunks, indices and places are put into lists by `list.append` itself.
Each time that it reads more of the file, what the lists hold is moved to columns and the states are emptied.
`Columns` relies on the order in which a pickler writes records (each index is followed by its place, and the
chunks of a tensor come before the tensor) and says `Irregular` where a file has another.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from operator import itemgetter
from typing import cast

from fsdp_doctor.ckpt.dcp_places import DIMS, Numbers, Places, only, wide
from fsdp_doctor.ckpt.dcp_records import CHUNK, INDEX, PLACE, TENSOR, Described, Irregular
from fsdp_doctor.ckpt.stub import Inert

BATCH = 500
"""Records that are waited for: they are few enough to stay in the processor's cache."""


class _Single(metaclass=Inert):
    """A class of which all instances are one object: what they hold goes to columns."""

    __slots__ = ()

    def __init__(self, *args: object) -> None:
        """Nothing to keep."""


class _Sized(metaclass=Inert):
    """A TensorStorageMetadata with its chunks as numbers."""

    __slots__ = ("chunks", "flat", "properties", "size")
    size: object
    properties: object
    chunks: int
    flat: array[int]

    def __new__(cls, *args: object) -> _Sized:
        """NEWOBJ."""
        return object.__new__(cls)

    def __init__(self, *args: object) -> None:
        """Nothing to keep."""


def placed(item: object) -> bool:
    """Whether this is a tensor that `Columns` made."""
    return isinstance(item, _Sized)


class Columns:
    """Numbers in arrays."""

    def __init__(self) -> None:
        self._flat, self._count, self._dims = Numbers(), 0, -1
        self._chunks: list[object] = []
        """States of chunks that are not in `_flat` yet."""
        self._states: list[object] = []
        """States of an index, its place, an index …, not in `_places` yet."""
        self._places = Places()
        self._irregular = False
        self._one_chunk, chunk = _single(self._chunks.append)
        _, index = _single(self._states.append)
        _, place = _single(self._states.append)
        self.classes: Mapping[str, type] = {
            **dict.fromkeys(CHUNK, chunk),
            **dict.fromkeys(INDEX, index),
            **dict.fromkeys(PLACE, place),
            **dict.fromkeys(TENSOR, self._sized()),
        }

    def _sized(self) -> type:
        keep = self._tensor

        def __setstate__(made: _Sized, state: object) -> None:
            keep(made, state)

        return Inert("Sized", (_Sized,), {"__slots__": (), "__setstate__": __setstate__})

    def between(self) -> None:
        """The unpickler reads on: move what has come in to columns."""
        if len(self._chunks) >= BATCH:
            self._take_chunks()
        if len(self._states) >= BATCH:
            self._take_places()

    def _take_chunks(self) -> None:
        states, self._count = self._chunks, self._count + len(self._chunks)
        try:
            only(states, dict)
            pairs = list(map(itemgetter("offsets", "sizes"), cast("list[dict[str, object]]", states)))
            halves = list(chain.from_iterable(pairs))
            only(halves, tuple)
            dims = set(map(len, cast("list[tuple[int, ...]]", halves)))
            if self._count > len(states):
                dims.add(self._dims)
            flat = tuple(chain.from_iterable(cast("list[tuple[int, ...]]", halves)))
            if flat:
                only(flat, int)
            if len(dims) > 1 or max(dims, default=0) > DIMS:
                raise Irregular
            self._dims = dims.pop() if dims else -1
            self._flat.extend(flat)
            _empty(states)
        except (Irregular, KeyError, TypeError, OverflowError):
            self._irregular = True
        states.clear()

    def _tensor(self, made: _Sized, state: object) -> None:
        self._take_chunks()
        made.flat, made.chunks = self._flat.held, self._count
        count, dims = self._count, self._dims
        self._flat, self._count, self._dims = Numbers(), 0, -1
        if not isinstance(state, dict):
            self._irregular = True
            return
        made.size, made.properties = state.get("size"), state.get("properties")
        chunks = state.get("chunks")
        if (
            not isinstance(chunks, list)
            or not isinstance(made.size, tuple)
            or not len(chunks) == count == chunks.count(self._one_chunk)
            or not (dims == len(made.size) or not count)
        ):
            self._irregular = True

    def _take_places(self) -> None:
        states = self._states
        whole = len(states) // 2 * 2
        try:
            only(states, dict)
            kept = cast("list[dict[str, object]]", states[:whole])
            self._places.add(kept[::2], kept[1::2])
            _empty(states[:whole])
        except (Irregular, KeyError, TypeError, OverflowError):
            self._irregular = True
        del states[:whole]

    def tensor(self, item: object) -> Described:
        """A tensor whose chunks were counted."""
        if self._irregular or not isinstance(item, _Sized):
            raise Irregular
        return Described(item.size, item.properties, item.chunks, wide(item.flat))

    def places(self, storage: Mapping[object, object]) -> Places:
        """The columns, in the order of the file. All keys of `storage` are one object."""
        self._take_places()
        if self._irregular or self._states or self._chunks or self._count or len(storage) > 1:
            raise Irregular
        return self._places


def _empty(states: list[object]) -> None:
    """The unpickler's memo keeps them to the end."""
    deque(map(dict.clear, cast("list[dict[str, object]]", states)), maxlen=0)


def _single(kept: Callable[[object], None]) -> tuple[object, type]:
    """A class with one instance, and that; BUILD calls `kept` with the state alone."""
    one: dict[type, object] = {}
    members = {"__slots__": (), "__new__": one.get, "__setstate__": kept}
    kind = cast("type[_Single]", Inert("Single", (_Single,), members))
    one[kind] = object.__new__(kind)
    return one[kind], kind
