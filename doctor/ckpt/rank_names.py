"""Ranks in file names: which files form a set with one per rank."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NUMBER = re.compile(r"\d{1,9}")
SAYS_RANK = re.compile(
    r"(?:^|[^a-z])(?:rank|rk|shard|process|proc|dp|fsdp)[-_=.]?(\d{1,9})(?=$|[^0-9])", re.I
)
OF_RANKS = re.compile(r"(\d{1,9})[-_. ]?of[-_. ]?\d{1,9}(?=$|[^0-9])", re.I)
WORLD = re.compile(r"(?:world[-_]?size|ws|of|world|nranks|nproc)[-_=.]?(\d{1,9})(?=$|[^0-9])", re.I)


@dataclass(frozen=True, slots=True)
class RankSet:
    """Files whose names differ in one number, which counts ranks."""

    template: str
    """The name with "*" for the rank."""
    ranks: dict[int, str]
    """Rank -> path."""
    named: bool
    """The names say that the number is a rank; otherwise only the files' content can."""
    world: int | None = None
    """A world size that the names carry."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks below the highest, or below the names' world size, that have no file."""
        size = self.world or max(self.ranks) + 1
        return tuple(r for r in range(min(size, 1 << 20)) if r not in self.ranks)


def rank_sets(paths: Iterable[str]) -> list[RankSet]:
    """Group paths (of one folder) into sets; a name without a number is in none."""
    groups: dict[tuple[str, bool], dict[int, str]] = {}
    for path in sorted(paths):
        found = _split(path)
        if found is not None:
            template, rank, named = found
            groups.setdefault((template, named), {})[rank] = path
    return [
        RankSet(template, ranks, named, _world(next(iter(ranks.values()))))
        for (template, named), ranks in groups.items()
    ]


def _split(path: str) -> tuple[str, int, bool] | None:
    folder, _, name = path.rpartition("/")
    said = list(SAYS_RANK.finditer(name))
    found = said[-1] if said else None
    if found is not None:
        start, end = found.span(1)
    else:
        counted = OF_RANKS.search(name)
        numbers = list(NUMBER.finditer(name))
        if not numbers:
            return None
        start, end = counted.span(1) if counted else numbers[-1].span()
    template = f"{name[:start]}*{name[end:]}"
    return (f"{folder}/{template}" if folder else template), int(name[start:end]), found is not None


def _world(path: str) -> int | None:
    name = path.rsplit("/", 1)[-1]
    found = WORLD.search(name)
    return int(found[1]) if found and 0 < int(found[1]) <= 1 << 20 else None
