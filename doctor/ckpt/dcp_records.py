"""Stand-ins for the four classes of which DCP's metadata holds one per tensor or per chunk.

`Exact` keeps every object; `dcp_columns.Columns` keeps numbers: of a million chunks the objects alone are a
gigabyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from fsdp_doctor.ckpt.stub import field as field_of
from fsdp_doctor.ckpt.stub import list_of, numbers

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
        if self.flat is not None:
            count, width = (self.chunks if isinstance(self.chunks, int) else 0), 2 * dims + 4
            rows.frombytes(bytes(count * width * rows.itemsize))
            for column in range(2 * dims):
                rows[column::width] = self.flat[column :: 2 * dims]
            for column in range(2 * dims, width):
                rows[column::width] = array("q", unplaced[:1]) * count
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

    def between(self) -> None:
        """The unpickler reads on."""

    def tensor(self, item: object) -> Described:
        """What the metadata says of a tensor. Raises `Irregular`."""

    def places(self, storage: Mapping[object, object]) -> Iterable[Place | None]:
        """All places; None for one that cannot be understood. Raises `Irregular`."""


class Exact:
    """Every object as a stub."""

    classes: Mapping[str, type] = {}

    def between(self) -> None:
        """Nothing: it keeps all."""

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
