"""What NCCL's RAS service answered about a running job."""

from __future__ import annotations

from dataclasses import dataclass

DEAD = "dead"
SILENT = "silent"
COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank of a communicator, or a process whose rank is not told."""

    rank: int | None
    pid: int | None = None
    host: str | None = None
    gpu: str = ""
    launched: int | None = None
    """Collectives that it has launched."""


@dataclass(frozen=True, slots=True)
class RasTrouble:
    """One entry under "Errors" or "Warnings"."""

    kind: str
    """dead: a process that RAS has given up; silent: one that does not answer; counts: ranks that have
    launched different numbers of collectives."""
    ranks: tuple[RasRank, ...]
    communicator: str = ""
    """Its hash; "" where the entry is about processes."""
    operation: str = ""
    """Of which the counts differ."""
    others: tuple[tuple[int, int], ...] = ()
    """Counts that many ranks share, and how many: (64, 7)."""
    line: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer."""

    troubles: tuple[RasTrouble, ...] = ()
    gpus: int | None = None
    """Of the whole job."""
    largest: int | None = None
    """Ranks of the largest communicator."""
    file: str = ""
    line: int = 0
    text: str = ""
