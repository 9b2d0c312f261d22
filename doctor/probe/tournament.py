"""Which transfers run in which round, and what sizes are measured: plans that every rank computes alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SWEEP = (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
"""Bytes of the whole array. Half of the peak is reached at 6 to 72 MiB, so latency, bend and plateau show."""
GRAIN = 16
"""Bytes that each rank's part is a multiple of: NCCL moves 16 at a time, torch wants whole elements."""

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
    """Every pair of nodes, over all rails at once: the i-th rank of one with the i-th of the other.

    All adapters are equally busy in every round, so that pairs can be compared. Two nodes leave a rank
    one partner on its rail; further rounds then shift the second node by one and by two, because a rank
    with a single pair cannot be told from that pair's other end.
    """
    lists = list(nodes.values())
    shifts = range(min(3, min((len(x) for x in lists), default=0))) if len(lists) == 2 else range(1)
    made = []
    for planned in rounds(range(len(lists))):
        for shift in shifts:
            pairs = [
                p for a, b in planned.pairs for p in zip(lists[a], _turned(lists[b], shift), strict=False)
            ]
            made.append(Round(tuple((min(p), max(p)) for p in pairs)))
    return tuple(r for r in made if r.pairs)


def _turned(ranks: Sequence[int], shift: int) -> tuple[int, ...]:
    return (*ranks[shift:], *ranks[:shift])


def tournament(nodes: Mapping[str, Sequence[int]]) -> tuple[Round, ...]:
    """Every pair within each node, then pairs between nodes rail by rail; `nodes` is host -> its ranks.

    Rounds grow with the ranks per node plus the number of nodes, never with the square of either.
    """
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
