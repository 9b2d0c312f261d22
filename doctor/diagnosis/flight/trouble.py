"""One process group that does not go on, or went on with wrong data."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.diagnosis.flight.divergence import Divergence
from fsdp_doctor.diagnosis.flight.history import Group


@dataclass(frozen=True, slots=True)
class Trouble:
    """One group that stands still (or went on with wrong data)."""

    group: Group
    kind: str
    sequence: int
    at_fault: tuple[int, ...]
    waiting: tuple[int, ...]
    """Ranks whose own operation at `sequence` is not done."""
    silent: tuple[int, ...] = ()
    since: int = 0
    """Nanoseconds: when the first of them came."""
    divergence: Divergence | None = None
    lag: float = 0.0
    """Seconds that a late rank came after the others."""
    finished: tuple[int, ...] = ()
    """Ranks that are through with the operation."""
    pair: tuple[int, int] | None = None
    """Sender and receiver, of point-to-point operations."""
    passed: bool = False
    """The operation that differs ended on all ranks."""
    confidence: str = "high"
