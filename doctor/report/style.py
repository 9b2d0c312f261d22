"""How text may look at its destination."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """Columns, colour, whether only ASCII can be shown, and whether passes and evidence are wanted."""

    width: int = 100
    colour: bool = False
    ascii: bool = False
    verbose: bool = False
