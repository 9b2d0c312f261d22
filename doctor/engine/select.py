"""Which checks run: select and ignore by code prefix, the longest matching prefix wins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.engine.spec import CheckSpec

ALL = "ALL"


class UnknownCode(ValueError):
    """A prefix that matches no check."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Prefixes as the user gave them. An empty `select` selects everything implicitly."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def includes(self, code: str) -> bool:
        """Whether a code runs.

        Explicit beats implicit; where both select and ignore match, the longer prefix wins and a tie
        is ignored (flake8's rule).
        """
        selected = _longest(self.select, code)
        ignored = _longest(self.ignore, code)
        if selected is None:
            return not self.select and ignored is None
        return ignored is None or selected > ignored


def _longest(prefixes: Iterable[str], code: str) -> int | None:
    lengths = [0 if p == ALL else len(p) for p in prefixes if p == ALL or code.startswith(p)]
    return max(lengths, default=None)


def selection(select: Iterable[str], ignore: Iterable[str], checks: Iterable[CheckSpec]) -> Selection:
    """Build a selection. Raises `UnknownCode` for a prefix that no check starts with."""
    codes = [c.code for c in checks]
    chosen = Selection(_split(select), _split(ignore))
    for prefix in (*chosen.select, *chosen.ignore):
        if prefix != ALL and not any(code.startswith(prefix) for code in codes):
            raise UnknownCode(f"no check has a code that starts with {prefix!r}; see `fsdp-doctor list`")
    return chosen


def _split(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(p.strip().upper() for v in values for p in v.split(",") if p.strip())
