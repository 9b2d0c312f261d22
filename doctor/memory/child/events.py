"""The event list: what is allocated and freed in which order, compact enough for a hundred thousand steps.

An event is a row of six integers in six columns: kind, block, bytes, stream, operator, module. Columns are
written one after the other; the header (JSON) says how many rows there are and holds the names that the
numbers of streams, operators and modules stand for.
"""

from __future__ import annotations

import json
import os
from array import array

ALLOCATE, FREE, MARK, USED, WAITED, HOST_ALLOCATE, HOST_FREE = range(7)
"""MARK: `operator` names a moment. USED: another stream used the block, so that its reuse waits for an event.
WAITED: the host has waited for all that was queued on a stream (-1: on all) up to event number `bytes`."""
COLUMNS = (("kind", "b"), ("block", "i"), ("bytes", "q"), ("stream", "h"), ("operator", "i"), ("module", "i"))


class Names:
    """Numbers for texts, in the order in which they were first met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self._numbers)
        return found

    def texts(self) -> list[str]:
        """All texts, by number."""
        return list(self._numbers)


class Events:
    """Rows in columns; blocks are numbered as they are allocated."""

    def __init__(self) -> None:
        self._columns = [array(code) for _, code in COLUMNS]
        self.operators, self.modules, self.streams = Names(), Names(), Names()
        self.blocks = self.marks = self._rows = 0
        self.modules.number("")

    def __len__(self) -> int:
        """Rows so far."""
        return len(self._columns[0])

    def row(self, kind: int, block: int, size: int, stream: int, operator: int, module: int) -> None:
        """Append one event."""
        for column, value in zip(self._columns, (kind, block, size, stream, operator, module)):  # noqa: B905
            column.append(value)

    def allocate(self, size: int, stream: int, operator: str, module: int, host: bool = False) -> int:
        """A block of so many bytes (as requested) comes to life; returns its number."""
        block = self.blocks
        self.blocks += 1
        kind = HOST_ALLOCATE if host else ALLOCATE
        self.row(kind, block, size, stream, self.operators.number(operator), module)
        return block

    def free(self, block: int, host: bool = False) -> None:
        """A block dies."""
        self.row(HOST_FREE if host else FREE, block, 0, 0, 0, 0)

    def mark(self, moment: str) -> None:
        """A moment of the training loop."""
        self.marks += 1
        self.row(MARK, -1, 0, 0, self.operators.number(moment), 0)

    def write(self, path: str) -> None:
        """Leave the columns in a file; `header` belongs to it."""
        part = path + ".part"
        self.row(MARK, -1, 0, 0, self.operators.number("end"), 0)
        self._columns, columns = [array(code) for _, code in COLUMNS], self._columns
        self._rows = len(columns[0])
        with open(part, "wb") as file:
            for column in columns:
                column.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)

    def header(self) -> dict[str, object]:
        """What the numbers in the columns mean."""
        return {
            "rows": self._rows,
            "blocks": self.blocks,
            "operators": self.operators.texts(),
            "modules": self.modules.texts(),
            "streams": self.streams.texts(),
        }


def write_json(path: str, value: object) -> None:
    """A whole file or none."""
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
