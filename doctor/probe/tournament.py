"""Which transfers run in which round, and what sizes are measured: plans that every rank computes alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SWEEP = (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
"""Bytes of the whole array. Half of the peak is reached at 6 to 72 MiB, so latency, bend and plateau show."""
GRAIN = 16
"""Bytes that each rank's part is a multiple of: NCCL moves 16 bytes at a time and torch wants whole elements."""

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Round:
    """Transfers that run at once; no rank is in two of them. Both directions of each, one after the other."""

    pairs: tuple[Pair, ...]

    def partner(self, rank: int) -> int | None:
        """Whom a rank exchanges with in this round; None where it rests."""
        return next((b if rank == a else a for a, b in self.pairs if rank in (a, b)), None)


def rounds(members: Sequence[int]) -> tuple[Round, ...]:
    """Every pair once, in n-1 rounds for even n and n rounds for odd n (circle method)."""
    ring: list[int | None] = list(dict.fromkeys(members))
    if len(ring) < 2:
        return ()
    if len(ring) % 2:
        ring.append(None)
    half, found = len(ring) // 2, []
    for _ in range(len(ring) - 1):
        made = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append(Round(tuple((min(a, b), max(a, b)) for a, b in made if a is not None and b is not None)))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return tuple(found)


def within_nodes(nodes: Mapping[str, Sequence[int]]) -> tuple[Round, ...]:
    """The tournaments of all nodes side by side: as many rounds as the largest node needs."""
    return _merged([rounds(ranks) for ranks in nodes.values()])


def between_nodes(nodes: Mapping[str, Sequence[int]]) -> tuple[Round, ...]:
    """Every pair of nodes once, over all rails at once: the i-th rank of one to the i-th of the other."""
    lists = list(nodes.values())
    made = []
    for planned in rounds(range(len(lists))):
        pairs = [p for a, b in planned.pairs for p in zip(lists[a], lists[b], strict=False)]
        made.append(Round(tuple((min(p), max(p)) for p in pairs)))
    return tuple(r for r in made if r.pairs)


def tournament(nodes: Mapping[str, Sequence[int]], whole: int = 64) -> tuple[Round, ...]:
    """All pairs up to `whole` ranks; beyond, within every node and between nodes rail by rail.

    Rounds grow with the number of ranks (or of ranks per node plus nodes), never with its square.
    """
    ranks = sorted(r for members in nodes.values() for r in members)
    if len(ranks) <= whole:
        return rounds(ranks)
    return (*within_nodes(nodes), *between_nodes(nodes))


def _merged(side_by_side: Sequence[Sequence[Round]]) -> tuple[Round, ...]:
    longest = max((len(s) for s in side_by_side), default=0)
    return tuple(
        Round(tuple(p for s in side_by_side if i < len(s) for p in s[i].pairs)) for i in range(longest)
    )


def rails(nodes: Mapping[str, Sequence[int]]) -> Mapping[int, tuple[int, ...]]:
    """Local rank -> its ranks over all nodes, where there are at least two nodes that have it."""
    width = max((len(r) for r in nodes.values()), default=0)
    made = {i: tuple(r[i] for r in nodes.values() if i < len(r)) for i in range(width)}
    return {i: ranks for i, ranks in made.items() if len(ranks) > 1}


def rounded(size: int, world_size: int) -> int:
    """The next size that divides into whole grains per rank."""
    grain = GRAIN * max(world_size, 1)
    return max(-(-size // grain), 1) * grain


def sizes(world_size: int, sweep: Iterable[int] = SWEEP, units: Iterable[int] = ()) -> tuple[int, ...]:
    """The sizes of a sweep and of the user's units, ascending, each divisible among the ranks."""
    return tuple(sorted({rounded(s, world_size) for s in (*sweep, *units) if s > 0}))
