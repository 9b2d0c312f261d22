"""Links that are slow although both their ends have good pairs.

Where slow pairs are many, they are the machine's layout and nobody's fault. Where an end has no other
pair, which end is at fault cannot be told, and that is what is said.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from fsdp_doctor.probe.cables import Place, as_cables, joins, one_way, slow_throughout
from fsdp_doctor.probe.pair_table import Kind, Link, Table
from fsdp_doctor.probe.peers import BETWEEN, decided
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, Culprit
from fsdp_doctor.tables.probe_thresholds import ISOLATED_SHARE, Floors

ALIKE = 0.5
"""Part of a link's ratio from which on another slow pair is slow for the same reason."""
ROUND_MATES = 4
"""Other directed pairs of one kind in a round, between nodes those of other nodes, from which on the round
itself can be called slow."""


def slow_links(
    first: Table,
    second: Table,
    scope: str,
    out: frozenset[int],
    limits: Floors,
    place: Place,
    slow_at: Mapping[int, float],
) -> tuple[Culprit, ...]:
    """Links of one scope between ranks that are not in `out`; `second` is the repetition.

    `slow_at` has ranks that are slow themselves, with the rate of their best pair: that explains their links
    down to this rate, and a link far below it is a second fault.
    """
    free = [k for k in first.rates if first.scope(k) == scope and not out & set(k)]
    references = _references(first, [k for k in free if not slow_at.keys() & set(k)], place)
    references |= {k: min(at) for k in free if (at := [slow_at[r] for r in k if r in slow_at])}
    slow = {k: r / first.rates[k] for k, r in references.items() if r and r / first.rates[k] >= limits.warn}
    # Two noisy comparisons, one upon the other.
    slow = {k: v for k, v in slow.items() if not slow_at.keys() & set(k) or v >= limits.warn**2}
    pairs = {(min(k), max(k)) for k in slow}
    every = {(min(k), max(k)) for k in free}
    found = []
    for pair in sorted(pairs):
        ways = [k for k in (pair, pair[::-1]) if k in slow]
        worst = max(ways, key=lambda k: slow[k])
        # A layout makes pairs slow by the same; what noise slowed a little does not hide a far slower link.
        alike = {(min(k), max(k)) for k, ratio in slow.items() if ratio >= ALIKE * slow[worst]}
        few = _few(alike, every) or (scope == BETWEEN and _few_cables(alike, every, place))
        if not few or not _isolated(pair, alike, every):
            continue
        reference = references[worst] or 0.0
        tellable = all(any(end in p for p in every - pairs) for end in pair)
        made = Culprit(
            LINK if tellable else EITHER_END,
            slow[worst],
            first.rates[worst],
            reference,
            "GB/s",
            ranks=pair,
            source=worst[0] if len(ways) == 1 else pair[0],
            target=worst[1] if len(ways) == 1 else pair[1],
            both_ways=len(ways) > 1,
            scope=scope,
            evidence=_way_back(first, worst) if len(ways) == 1 else (),
        )
        mine = slow_at.keys() & set(worst)
        peers = [k for k in second.rates if k not in slow and slow_at.keys() & set(k) == mine]
        again = _link_again(second, worst, peers, reference, limits)
        if (kept := decided(made, limits, again, limits.warn, limits.fail)) is not None:
            found.append(kept)
    if scope == BETWEEN:
        found = [*as_cables(found, every, place)]
        found += one_way(first, second, free, limits, scope, place)
    return (*found, *_one_direction(first, second, free, references, limits, scope))


def _references(table: Table, free: Collection[Link], place: Place) -> dict[Link, float | None]:
    """What other links of its kind reach; in a round that is slow throughout, what that round reaches."""
    pools: dict[Kind, list[float]] = defaultdict(list)
    together: dict[tuple[Kind, int], list[Link]] = defaultdict(list)
    for k in free:
        pools[table.kinds[k]].append(table.rates[k])
        together[table.kinds[k], table.rounds[k]].append(k)
    for pool in pools.values():
        pool.sort()
    found: dict[Link, float | None] = {}
    for k in free:
        rest = pools[table.kinds[k]].copy()
        for way in (k, (k[1], k[0])):
            if way in table.rates:
                del rest[bisect_left(rest, table.rates[way])]
        found[k] = middle = _middle(rest)
        mates = [
            m
            for m in together[table.kinds[k], table.rounds[k]]
            if set(m) != set(k) and (table.scope(k) != BETWEEN or joins(m, place) != joins(k, place))
        ]
        if middle is not None and table.rates[k] < middle and len(mates) >= ROUND_MATES:
            found[k] = min(middle, statistics.median(table.rates[m] for m in mates))
    return found


def _middle(ordered: Sequence[float]) -> float | None:
    return statistics.median(ordered) if ordered else None


def _few(slow: Collection[object], every: Collection[object]) -> bool:
    """Whether few enough are slow for each to be a fault, and not the machine's layout."""
    return len(slow) <= max(1, ISOLATED_SHARE * len(every))


def _few_cables(slow: Collection[Link], every: Collection[Link], place: Place) -> bool:
    """The same for pairs of hosts, where slow pairs lie only between hosts that are slow throughout."""
    whole = slow_throughout(slow, every, place)
    return {joins(p, place) for p in slow} == whole and _few(whole, {joins(p, place) for p in every})


def _isolated(pair: Link, slow: Collection[Link], every: Collection[Link]) -> bool:
    """Whether few enough pairs of both its ends are slow."""
    for end in pair:
        own, bad = (sum(end in p for p in pairs) for pairs in (every, slow))
        if bad > max(1, ISOLATED_SHARE * own):
            return False
    return True


def _way_back(table: Table, link: Link) -> tuple[str, ...]:
    back = table.rates.get((link[1], link[0]))
    return () if back is None else (f"the other way {back:.3g} GB/s",)


def _link_again(
    second: Table, link: Link, peers: Collection[Link], reference: float, limits: Floors
) -> bool | None:
    """Whether the link is slow again, against links that were not slow and were measured beside it."""
    rate = second.rates.get(link)
    if rate is None:
        return None
    controls = [
        k
        for k in second.rates
        if second.kinds[k] == second.kinds[link] and k in peers and set(k) != set(link)
    ]
    if limits.unqueued and not second.apart([link], controls):
        return False
    fresh = [second.rates[k] for k in controls]
    return (statistics.median(fresh) if fresh else reference) / rate >= limits.warn


def _one_direction(
    first: Table,
    second: Table,
    free: Iterable[Link],
    references: Mapping[Link, float | None],
    limits: Floors,
    scope: str,
) -> tuple[Culprit, ...]:
    """A pair without peers: its two directions are each other's reference, and the ends cannot be told."""
    found = []
    for link in free:
        back = (link[1], link[0])
        if references[link] is not None or back not in first.rates or first.rates[link] >= first.rates[back]:
            continue
        slow, fast = second.rates.get(link), second.rates.get(back)
        again = None if slow is None or fast is None else fast / slow >= limits.warn
        made = Culprit(
            EITHER_END,
            first.rates[back] / first.rates[link],
            first.rates[link],
            first.rates[back],
            "GB/s",
            ranks=(min(link), max(link)),
            source=link[0],
            target=link[1],
            both_ways=False,
            scope=scope,
            evidence=_way_back(first, link),
        )
        if (kept := decided(made, limits, again, limits.warn, limits.fail)) is not None:
            found.append(kept)
    return tuple(found)
