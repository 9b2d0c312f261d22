"""How far a rank's clock is from rank 0's, by four stamps over a connection that exists already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PINGS = 5
ROUNDING = 1e-6
"""Seconds by which sums of wall-clock stamps, which are large numbers, may be off."""


@dataclass(frozen=True, slots=True)
class Ping:
    """One exchange, in seconds of each end's wall clock."""

    sent: float
    """By this rank's clock."""
    heard: float
    """By rank 0's."""
    answered: float
    """By rank 0's."""
    returned: float
    """By this rank's."""

    @property
    def round_trip(self) -> float:
        """Seconds on the way, without rank 0's own."""
        return (self.returned - self.sent) - (self.answered - self.heard)

    @property
    def offset(self) -> float:
        """Seconds that this rank's clock is ahead, if both ways take equally long."""
        return ((self.sent - self.heard) + (self.returned - self.answered)) / 2


def offset(pings: Iterable[Ping]) -> float | None:
    """The offset of the quickest exchange, which is wrong by half its round trip at most."""
    fair = [p for p in pings if p.round_trip > -ROUNDING]  # a clock that was set in between makes it negative
    return min(fair, key=lambda p: p.round_trip).offset if fair else None
