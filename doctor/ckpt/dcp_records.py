"""Stand-ins for the four classes of which DCP's metadata holds one per tensor or per chunk.

`Exact` keeps every object. `Columns` keeps numbers: of a million chunks the objects alone are a gigabyte.
It relies on the order in which a pickler writes them (each index is followed by its place, and the chunks of
a tensor come before the tensor) and says `Irregular` where a file has another.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, cast

from fsdp_doctor.ckpt.stub import Inert, list_of, numbers
from fsdp_doctor.ckpt.stub import field as field_of

_MODULES = ("torch.distributed.checkpoint.", "torch.distributed._shard.checkpoint.")
"""The second is where torch 1.13 had it."""
CHUNK = tuple(m + "metadata.ChunkStorageMetadata" for m in _MODULES)
INDEX = tuple(m + "metadata.MetadataIndex" for m in _MODULES)
PLACE = tuple(m + "filesystem._StorageInfo" for m in _MODULES)
TENSOR = tuple(m + "metadata.TensorStorageMetadata" for m in _MODULES)
FAR = 1 << 40

Place = tuple[str, "tuple[int, ...] | None", int, str, int, int, bool]
"""Key, offset of the chunk (None for what is no tensor), position in the tensor's chunks or -1, file, start,
length, and whether the item was transformed."""


class Irregular(Exception):
    """The pickle has its objects in another order than a pickler of DCP's metadata."""


class Described(NamedTuple):
    """One TensorStorageMetadata."""

    size: object
    properties: object
    chunks: object
    flat: array[int] | None
    """Offsets and sizes of all chunks, one after the other, instead of `chunks`."""

    def rows(self, dims: int) -> tuple[array[int], int]:
        """Rows of `MetaTensor` with places unknown, and how many chunks did not fit."""
        rows, malformed = array("q"), 0
        unplaced = (-1, -1, -1, -1)
        if self.flat is not None and not dims:
            rows.extend(unplaced * (self.chunks if isinstance(self.chunks, int) else 0))
            return rows, malformed
        if self.flat is not None:
            for at in range(0, len(self.flat), 2 * dims):
                rows.extend(self.flat[at : at + 2 * dims])
                rows.extend(unplaced)
            return rows, malformed
        for chunk in list_of(self.chunks):
            offsets, sizes = numbers(field_of(chunk, "offsets")), numbers(field_of(chunk, "sizes"))
            if offsets is None or sizes is None or not len(offsets) == len(sizes) == dims:
                malformed += 1
            else:
                rows.extend(offsets + sizes + unplaced)
        return rows, malformed


class Records(Protocol):
    """How tensors and places come out of a pickle."""

    classes: Mapping[str, type]

    def tensor(self, item: object) -> Described:
        """What the metadata says of a tensor. Raises `Irregular`."""

    def places(self, storage: Mapping[object, object]) -> Iterator[Place | None]:
        """All places; None for one that cannot be understood. Raises `Irregular`."""


class Exact:
    """Every object as a stub."""

    classes: Mapping[str, type] = {}

    def tensor(self, item: object) -> Described:
        """From its fields."""
        return Described(field_of(item, "size"), field_of(item, "properties"), field_of(item, "chunks"), None)

    def places(self, storage: Mapping[object, object]) -> Iterator[Place | None]:
        """From keys and values."""
        for index, info in storage.items():
            path, start, length = (field_of(info, k) for k in ("relative_path", "offset", "length"))
            key, offset, hint = (field_of(index, k) for k in ("fqn", "offset", "index"))
            where = numbers(offset)
            if (
                not (isinstance(key, str) and isinstance(path, str))
                or type(start) is not int
                or type(length) is not int
                or (offset is not None and where is None)
            ):
                yield None
                continue
            near = hint if type(hint) is int and 0 <= hint < FAR else -1
            yield key, where, near, path, start, length, bool(field_of(info, "transform_descriptors"))


class _Single(metaclass=Inert):
    """A class of which all instances are one object: what they hold goes to columns when BUILD comes."""

    __slots__ = ()

    def __init__(self, *args: object) -> None:
        """Nothing to keep."""


class _Sized(metaclass=Inert):
    """A TensorStorageMetadata with its chunks as numbers."""

    __slots__ = ("chunks", "flat", "properties", "size")
    size: object
    properties: object
    chunks: object
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
        self._flat, self._count, self._dims = array("q"), 0, -1
        self._pending: dict[str, object] | None = None
        self._keys: dict[str, int] = {}
        self._paths: dict[str, int] = {}
        self._small, self._large = array("i"), array("q")
        self._irregular = False
        chunk, index, place = (self._single(f) for f in (self._chunk, self._index, self._info))
        self.classes: Mapping[str, type] = {
            **dict.fromkeys(CHUNK, chunk),
            **dict.fromkeys(INDEX, index),
            **dict.fromkeys(PLACE, place),
            **dict.fromkeys(TENSOR, self._sized()),
        }
        self._one_chunk = chunk()

    def _single(self, built: Callable[[object], None]) -> type:
        """A class with one instance. BUILD calls `built`, which is bound and so gets the state alone."""
        kind = cast("type[_Single]", Inert("Single", (_Single,), {"__slots__": (), "__setstate__": built}))
        one = object.__new__(kind)
        return Inert("Single", (_Single,), {"__slots__": (), "__new__": lambda cls, *args: one})

    def _sized(self) -> type:
        keep = self._tensor

        def __setstate__(made: _Sized, state: object) -> None:
            keep(made, state)

        return Inert("Sized", (_Sized,), {"__slots__": (), "__setstate__": __setstate__})

    def _chunk(self, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a chunk without fields")
        offsets = cast("tuple[int, ...]", state["offsets"])
        sizes = cast("tuple[int, ...]", state["sizes"])
        dims = len(offsets)
        if (self._count and dims != self._dims) or len(sizes) != dims:
            self._irregular = True
        self._dims = dims
        self._count += 1
        self._flat.extend(offsets)
        self._flat.extend(sizes)
        state.clear()

    def _tensor(self, made: _Sized, state: object) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a tensor without fields")
        made.size, made.properties = state.get("size"), state.get("properties")
        chunks = state.get("chunks")
        dims = len(made.size) if isinstance(made.size, tuple) else -1
        regular = (
            isinstance(chunks, list) and len(chunks) == self._count and (dims == self._dims or not chunks)
        )
        if not regular or any(c is not self._one_chunk for c in list_of(chunks)):
            self._irregular = True
        made.flat, made.chunks = self._flat, self._count
        self._flat, self._count, self._dims = array("q"), 0, -1

    def _index(self, state: object) -> None:
        if self._pending is not None or not isinstance(state, dict):
            self._irregular = True
            return
        self._pending = state

    def _info(self, state: object) -> None:
        index = self._pending
        if index is None or not isinstance(state, dict):
            self._irregular = True
            return
        self._pending = None
        # An index of what is no tensor has neither offset nor position.
        key, hint = index.get("fqn"), index.get("index")
        offset = cast("tuple[int, ...] | None", index.get("offset"))
        path = state.get("relative_path")
        if type(key) is not str or type(path) is not str or (hint is not None and type(hint) is not int):
            self._irregular = True
            return
        dims = -1 if offset is None else len(offset)
        more = bool(state.get("transform_descriptors"))
        near = -1 if hint is None or not 0 <= hint < 1 << 30 else hint
        keys, paths = self._keys, self._paths
        self._small.extend(
            (keys.setdefault(key, len(keys)), near, dims, paths.setdefault(path, len(paths)), more)
        )
        self._large.append(cast("int", state["offset"]))
        self._large.append(cast("int", state["length"]))
        if offset is not None:
            self._large.extend(offset)
        index.clear()
        state.clear()

    def tensor(self, item: object) -> Described:
        """A tensor whose chunks were counted."""
        if self._irregular or not isinstance(item, _Sized):
            raise Irregular
        return Described(item.size, item.properties, item.chunks, item.flat)

    def places(self, storage: Mapping[object, object]) -> Iterator[Place | None]:
        """From the columns, in the order of the file. All keys of `storage` are one object."""
        if self._irregular or self._pending is not None or len(storage) > 1 or self._count:
            raise Irregular
        keys, paths, small, large = list(self._keys), list(self._paths), self._small, self._large
        at = 0
        for i in range(0, len(small), 5):
            key, near, dims, path, more = small[i : i + 5]
            start, length = large[at], large[at + 1]
            at += 2
            offset = None
            if dims >= 0:
                offset = tuple(large[at : at + dims])
                at += dims
            yield keys[key], offset, near, paths[path], start, length, bool(more)
