"""Who is not with the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping


def minority(what: Mapping[int, Hashable]) -> frozenset[int]:
    """The ranks whose value is not the one that more than half of them have; nobody where there is none."""
    if not what:
        return frozenset()
    ((most, count),) = Counter(what.values()).most_common(1)
    if count * 2 <= len(what):
        return frozenset()
    return frozenset(r for r, value in what.items() if value != most)
