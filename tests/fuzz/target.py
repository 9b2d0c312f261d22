"""What a fuzz target is, and how its seeds are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"
Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    """One reader. `read` gets the bytes and a folder of its own to put them into."""

    seeds: Callable[[], list[bytes]]
    read: Read


def files(folder: str, pattern: str, most: int = 12) -> list[bytes]:
    """Small files below a folder of the fixtures, spread over it."""
    found = sorted(
        p for p in (FIXTURES / folder).rglob(pattern) if p.is_file() and p.stat().st_size < 1 << 17
    )
    return [p.read_bytes() for p in found[:: max(1, len(found) // most)]]
