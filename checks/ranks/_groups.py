"""Who agrees with whom: ranks grouped by a value, the largest group first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fsdp_doctor.findings import Subject
from fsdp_doctor.subjects.rank_set import RankDigest

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Groups(Generic[V]):
    """At least two values among ranks. `groups[0]` is the majority; in a tie the group of the lowest rank."""

    groups: tuple[tuple[V, tuple[RankDigest, ...]], ...]

    @property
    def odd(self) -> tuple[RankDigest, ...]:
        """The ranks outside the majority."""
        return tuple(sorted((r for _, ranks in self.groups[1:] for r in ranks), key=lambda r: r.rank))

    def words(self, what: Callable[[V], str] = str) -> str:
        """Each value with its ranks and hosts: `ranks 0-1 (node-a) 2.29.7; ranks 2-3 (node-b) 2.28.9`."""
        return "; ".join(f"{named(ranks)} {what(value)}" for value, ranks in self.groups)

    @property
    def subject(self) -> Subject:
        """The odd ranks and, where it is one, their host."""
        return subject(self.odd)


def split(ranks: Iterable[RankDigest], value: Callable[[RankDigest], V | None]) -> Groups[V] | None:
    """Group ranks by a value; those without one are left out. None where all agree."""
    found: dict[V, list[RankDigest]] = {}
    for rank in ranks:
        own = value(rank)
        if own is not None:
            found.setdefault(own, []).append(rank)
    if len(found) < 2:
        return None
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0].rank))
    return Groups(tuple((v, tuple(r)) for v, r in order))


def subject(ranks: Iterable[RankDigest]) -> Subject:
    """These ranks as the subject of a finding."""
    those = sorted(ranks, key=lambda r: r.rank)
    numbers = tuple(r.rank for r in those)
    hosts = sorted({r.host for r in those if r.host})
    rank = None if not numbers else numbers[0] if len(numbers) == 1 else numbers
    return Subject(host=",".join(hosts) or None, rank=rank)


HOSTS_NAMED = 4


def named(ranks: Iterable[RankDigest]) -> str:
    """`rank 3 (node-b)`, `ranks 0-6, 8 (node-a)`; hosts are named up to a handful."""
    those = list(ranks)
    hosts = list(dict.fromkeys(r.host for r in those if r.host))
    more = f", {len(hosts) - HOSTS_NAMED} more" if len(hosts) > HOSTS_NAMED else ""
    where = f" ({', '.join(hosts[:HOSTS_NAMED])}{more})" if hosts else ""
    return ("rank " if len(those) == 1 else "ranks ") + spans(r.rank for r in those) + where


def spans(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as `0-2, 5`."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def known(ranks: Iterable[RankDigest], value: Callable[[RankDigest], object]) -> int:
    """How many ranks have the value at all; fewer than two cannot be compared."""
    return sum(value(r) is not None for r in ranks)


def machines(ranks: Iterable[RankDigest]) -> tuple[RankDigest, ...]:
    """The first rank of each machine; host name and boot tell machines apart."""
    firsts: dict[tuple[str | None, str | None], RankDigest] = {}
    for r in sorted(ranks, key=lambda r: r.rank):
        firsts.setdefault((r.host, r.boot_id), r)
    return tuple(firsts.values())


def on_machine(ranks: Iterable[RankDigest], first: RankDigest) -> tuple[RankDigest, ...]:
    """All ranks of the machine of one of them."""
    return tuple(r for r in ranks if (r.host, r.boot_id) == (first.host, first.boot_id))


def knows_nodes(rank: RankDigest) -> bool:
    """Whether the rank's own environment says that the job has several nodes.

    Checks of one machine then judge by themselves what is a fault in such a job only.
    """
    return bool(rank.world_size and rank.local_world_size and rank.world_size > rank.local_world_size)
