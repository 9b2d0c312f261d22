"""Changes of a configuration that were replayed, and what each saves. Bytes of one rank throughout."""

from __future__ import annotations

from dataclasses import dataclass

REPLAYED, SIMULATED = "replayed", "simulated"
"""A replay of the changed configuration; the same replay under other rules of the allocator, or with blocks
taken out of it, where the change cannot be made from outside."""


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One change, alone or several together."""

    change: str
    """In words."""
    flags: str
    """What differs on the command line."""
    allocated: int
    """The peak of the changed configuration."""
    saves: int
    """Less than now; what does not help is not listed."""
    needed: int
    fits: bool | None
    """None where no GPU was named."""
    slowdown: float | None
    """Estimated: 0.3 for a step that takes 30 % longer, below 0 for a faster one; None: unknown."""
    cost: str
    """What it costs, in words."""
    basis: str = REPLAYED


@dataclass(frozen=True, slots=True)
class MemoryAdvice:
    """Single changes, the best one first."""

    changes: tuple[MeasuredChange, ...]
    together: MeasuredChange | None = None
    """Several of them, where none makes it fit alone."""
    no_help: tuple[str, ...] = ()
    """Changes that were replayed and save nothing worth it."""
    refused: tuple[tuple[str, str], ...] = ()
    """Changes that cannot be run, and why."""
    untried: tuple[str, ...] = ()
    """Changes that time did not suffice for."""
    basis: str = ""
    """What the slowdowns stand on."""
