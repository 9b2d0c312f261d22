"""The event list of a replay, read back from the child's columns."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ALLOCATE, FREE, MARK, USED, WAITED, HOST_ALLOCATE, HOST_FREE = range(7)
BUCKETS = "ddp: gradient buckets"
"""What the buckets of DDP are allocated under."""
COLUMNS = ("b", "i", "q", "h", "i", "i")
"""Type codes of kind, block, bytes, stream, operator, module."""
MOST_ROWS = 50_000_000


class BrokenEvents(ValueError):
    """The file does not hold what its header says."""


@dataclass(frozen=True, slots=True)
class EventList:
    """What one rank allocates and frees, in order. Sizes are bytes as requested."""

    kinds: array[int]
    blocks: array[int]
    sizes: array[int]
    streams: array[int]
    operators: array[int]
    modules: array[int]
    operator_names: tuple[str, ...]
    module_names: tuple[str, ...]
    block_count: int

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Kind, block, bytes, stream, operator, module of each event."""
        return zip(  # noqa: B905 - read to the same length
            self.kinds, self.blocks, self.sizes, self.streams, self.operators, self.modules
        )

    def of_rows(self, rows: Sequence[int]) -> EventList:
        """The events of some rows, in the order in which they are named."""

        def chosen(column: array[int]) -> array[int]:
            return array(column.typecode, [column[row] for row in rows])

        return replace(
            self,
            kinds=chosen(self.kinds),
            blocks=chosen(self.blocks),
            sizes=chosen(self.sizes),
            streams=chosen(self.streams),
            operators=chosen(self.operators),
            modules=chosen(self.modules),
        )


def read(path: Path, header: Mapping[str, object]) -> EventList:
    """The list in a file. Raises `BrokenEvents` and `OSError`."""
    rows, operators, modules, count = (header.get(k) for k in ("rows", "operators", "modules", "blocks"))
    if not isinstance(rows, int) or not 0 <= rows <= MOST_ROWS or not isinstance(count, int):
        raise BrokenEvents("the header has no number of rows")
    raw = path.read_bytes()
    columns: list[array[int]] = []
    at = 0
    for code in COLUMNS:
        column: array[int] = array(code)
        size = rows * column.itemsize
        if at + size > len(raw):
            raise BrokenEvents("the file is shorter than its header says")
        column.frombytes(raw[at : at + size])
        columns.append(column)
        at += size
    kinds, blocks, sizes, streams, ops, places = columns
    return EventList(kinds, blocks, sizes, streams, ops, places, _texts(operators), _texts(modules), count)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
        raise BrokenEvents("the header's names are no texts")
    return tuple(sys.intern(str(v)) for v in value)
