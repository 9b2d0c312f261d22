"""Where the parts of a tensor lie: a million of them in columns, read one at a time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload


@dataclass(frozen=True, slots=True)
class Chunk:
    """One rectangle of a tensor and the bytes that hold it."""

    offsets: tuple[int, ...]
    """In the global tensor, in elements, per dimension."""
    sizes: tuple[int, ...]
    file: int | None = None
    """Position in `CheckpointIndex.files`; None where the metadata names no place for the chunk."""
    start: int | None = None
    """First byte of the item in the file: in DCP a whole torch.save archive, in other formats the bare
    bytes of the storage. None where it is not known."""
    length: int | None = None
    """Bytes of that item."""
    rank: int | None = None
    """The rank that wrote it, where the file or its content tells."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkColumns(Sequence[Chunk]):
    """Chunks of one tensor, as numbers in columns; a negative number stands for None.

    `place` holds, per chunk, offsets, sizes, file, start, length and rank: 2 x dims + 4 numbers.
    """

    dims: int
    place: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        """Chunks."""
        return len(self.place) // (2 * self.dims + 4)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Chunk, ...]: ...

    def __getitem__(self, index: int | slice) -> Chunk | tuple[Chunk, ...]:
        """One chunk, or those of a slice."""
        if isinstance(index, slice):
            return tuple(self._at(i) for i in range(*index.indices(len(self))))
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self._at(at)

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks in the order of the metadata."""
        return map(self._at, range(len(self)))

    def _at(self, index: int) -> Chunk:
        dims, width = self.dims, 2 * self.dims + 4
        row = self.place[index * width : (index + 1) * width].tolist()
        file, start, length, rank = (None if n < 0 else n for n in row[2 * dims :])
        return Chunk(tuple(row[:dims]), tuple(row[dims : 2 * dims]), file, start, length, rank)
