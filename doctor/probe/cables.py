"""What joins two hosts slows all pairs of their ranks at once: one cable is one fault, named once."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.probe.pair_table import Link, Table
from fsdp_doctor.probe.peers import decided
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, Culprit
from fsdp_doctor.tables.probe_thresholds import Floors

Place = Mapping[int, str]
"""Rank -> host."""


def joins(pair: Link, place: Place) -> tuple[str, ...]:
    """The two hosts of a pair, in order of their names."""
    return tuple(sorted((place[pair[0]], place[pair[1]])))


def slow_throughout(
    slow: Collection[Link], every: Collection[Link], place: Place
) -> frozenset[tuple[str, ...]]:
    """Pairs of hosts of which every measured pair of ranks is slow."""
    healthy = {joins(p, place) for p in every if p not in slow}
    return frozenset({joins(p, place) for p in slow} - healthy)


def as_cables(found: Sequence[Culprit], every: Collection[Link], place: Place) -> tuple[Culprit, ...]:
    """Slow links with those between the same hosts as one, where they are all of the pairs between these."""
    together: dict[tuple[str, str, bool], list[Culprit]] = defaultdict(list)
    for c in found:
        if c.kind == LINK and c.source is not None and c.target is not None:
            together[place[c.source], place[c.target], c.both_ways].append(c)
    made = list(found)
    for (source, target, both), links in together.items():
        if len(links) < max(2, sum(set(joins(p, place)) == {source, target} for p in every)):
            continue
        way = "between" if both else "from"
        said = f"so are all {len(links)} pairs {way} {source} {'and' if both else 'to'} {target}"
        made = [c for c in made if c not in links]
        made.append(_one(links, said))
    return tuple(made)


def _one(links: Sequence[Culprit], said: str) -> Culprit:
    worst = max(links, key=lambda c: c.ratio)
    return replace(
        worst,
        ranks=tuple(sorted({r for c in links for r in c.ranks})),
        # A few of them are measured again; one that is then no longer slow is not among these any more.
        confirmed=any(c.confirmed for c in links),
        fails=any(c.fails for c in links),
        evidence=(said, *worst.evidence),
    )


def one_way(
    first: Table, second: Table, free: Sequence[Link], limits: Floors, scope: str, place: Place
) -> tuple[Culprit, ...]:
    """Two hosts alone, of which one way is slow for all pairs: the way back is their only peer."""
    forth = [k for k in free if (k[1], k[0]) in first.rates and place[k[0]] < place[k[1]]]
    if len({joins(k, place) for k in free}) != 1 or len(forth) < 2:
        return ()
    for links in (forth, [(b, a) for a, b in forth]):
        ratios = {k: first.rates[k[1], k[0]] / first.rates[k] for k in links}
        if min(ratios.values()) < limits.warn:
            continue
        middle = sorted(links, key=lambda k: ratios[k])[len(links) // 2]
        both = [k for k in links if k in second.rates and (k[1], k[0]) in second.rates]
        again = all(second.rates[k[1], k[0]] / second.rates[k] >= limits.warn for k in both) if both else None
        made = Culprit(
            EITHER_END,
            ratios[middle],
            statistics.median(first.rates[k] for k in links),
            statistics.median(first.rates[k[1], k[0]] for k in links),
            "GB/s",
            ranks=tuple(sorted({r for k in links for r in k})),
            source=middle[0],
            target=middle[1],
            both_ways=False,
            scope=scope,
            evidence=(f"so are all {len(links)} pairs from {place[middle[0]]} to {place[middle[1]]}",),
        )
        kept = decided(made, limits, again, limits.warn, limits.fail)
        return () if kept is None else (kept,)
    return ()
