"""The part of a stream that is in memory: what is looked at next, some bytes before it and some after it."""

from __future__ import annotations

from collections.abc import Iterator

PART = 4 << 20
BACK = 32 << 10
"""Bytes before a part: a line is read back to its beginning, a table to its head."""
AHEAD = 128 << 10
"""Bytes after a part: a traceback is followed to its end."""
LONGEST = 32 << 10
"""Bytes of a line that are read around a place; a longer line is not read as a whole."""
NEVER = -1


class Window:
    """Bytes, and the numbers of their lines. Offsets are the window's own, until it moves on (`advance`)."""

    def __init__(self, data: bytes = b"", fixed: int | None = None) -> None:
        self.data = data
        self.start = 0
        """Where the bytes begin that nobody has looked at."""
        self.passed = 0
        """Lines before what is in memory and was counted."""
        self._counted = 0
        self._fixed = fixed
        """The number of every line, where all come from one line of structured logging."""

    @property
    def counts(self) -> int:
        """By how much the number grows from line to line."""
        return 1 if self._fixed is None else 0

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a part and what comes after it."""
        return len(self.data) - self.start > PART + AHEAD

    def part(self, final: bool) -> tuple[int, int]:
        """Where the next part begins and ends: at the end of a line, where there is one."""
        self._counted = self.start
        if final:
            return self.start, len(self.data)
        target = min(self.start + PART, len(self.data) - AHEAD)
        end = self.data.rfind(b"\n", self.start, target) + 1 or target
        return self.start, end if end > self.start else target

    def bounds(self, place: int, behind: int) -> tuple[int, int]:
        """Begin and end of the line around a place, none of it before the end of the last line, `behind`."""
        floor = max(behind, self.start - BACK, 0)
        at = self.data.rfind(b"\n", floor, place) + 1 or floor
        stop = self.data.find(b"\n", place)
        stop = stop if stop >= 0 else len(self.data)
        if stop - at > LONGEST:
            at, stop = max(at, place - LONGEST // 2), min(stop, place + LONGEST // 2)
        return at, stop

    def number(self, at: int) -> int:
        """The number of the line that begins at `at`, which mostly grows from call to call."""
        return self._before(at) + 1 if self._fixed is None else self._fixed

    def _before(self, at: int) -> int:
        if at > self._counted:
            self.passed += self.data.count(b"\n", self._counted, at)
            self._counted = at
        elif at < self._counted:
            return self.passed - self.data.count(b"\n", at, self._counted)
        return self.passed

    def text(self, at: int, stop: int) -> str:
        """What stands between two places."""
        return self.data[at:stop].decode("utf-8", "replace")

    def following(self, at: int) -> Iterator[tuple[int, str]]:
        """Lines from `at` on to the end of the window, with where they begin."""
        while at < len(self.data):
            stop = self.data.find(b"\n", at)
            stop = stop if stop >= 0 else len(self.data)
            yield at, self.text(at, min(stop, at + LONGEST))
            at = stop + 1

    def above(self, at: int, count: int) -> list[tuple[int, str]]:
        """At most `count` lines that end before `at`, in their order."""
        lines: list[tuple[int, str]] = []
        while at > 0 and len(lines) < count:
            begin = self.data.rfind(b"\n", 0, at - 1) + 1
            lines.append((begin, self.text(begin, min(at - 1, begin + LONGEST))))
            at = begin
        return lines[::-1]

    def advance(self, end: int) -> int:
        """Forget what stands long before `end`; gives by how much every offset becomes smaller."""
        if self._fixed is None:
            self._before(end)
        back = max(end - BACK, 0)
        self.data = self.data[back:]
        self.start = end - back
        return back
