"""Which known name an unknown one was meant to be."""

from __future__ import annotations

from collections.abc import Iterable

LONG, LONGER = 8, 16
"""Characters from which on two or three slips are still a slip."""


def slips(one: str, other: str, limit: int) -> int:
    """Letters inserted, left out, replaced or swapped between two words; `limit` + 1 where there are more."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, older[j - 2] + 1)
            row.append(best)
        if min(row) > limit:
            return limit + 1
    return row[-1]


def nearest(name: str, known: Iterable[str], prefix: str = "", most: int = 3) -> str | None:
    """The known name that differs from `name` by few slips behind the prefix, or orders its words otherwise.

    None where none is near. At most `most` slips are forgiven, fewer in short names; a name beyond 80
    characters is nobody's slip.
    """
    if len(name) > 80:
        return None
    rest = name[len(prefix) :]
    limit = min(most, 1 if len(rest) < LONG else 2 if len(rest) < LONGER else 3)
    best: tuple[int, str] | None = None
    words = sorted(rest.split("_"))
    for other in sorted(known):
        if not other.startswith(prefix) or other == name:
            continue
        tail = other[len(prefix) :]
        count = 1 if words == sorted(tail.split("_")) else slips(rest, tail, limit)
        if count <= limit and (best is None or count < best[0]):
            best = (count, other)
    return None if best is None else best[1]
