"""What the tournament of pairs says: a bad rank has no good pair, a bad link leaves both its ends one.

Pairs are compared with pairs of their kind only: same GPUs, same distance (in the node, across its NUMA
nodes where there is no NVLink, between nodes on one rail, across rails).
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsdp_doctor.probe.peers import BETWEEN, INSIDE, decided, hosts, local_rank, nvlinked
from fsdp_doctor.probe.stats import finite
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, NODE, RAIL, TRANSFER, Culprit
from fsdp_doctor.subjects.probe import PairTiming, ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_thresholds import ISOLATED_SHARE, Floors

Link = tuple[int, int]
"""Source and target."""
Kind = tuple[str, ...]
"""What pairs must share to be compared; the first word is the scope."""
ROUND_MATES = 6
"""Directed pairs of one kind in a round from which the round itself can be called slow."""


@dataclass(slots=True)
class Table:
    """GB/s of every directed pair of one run, with each pair's kind and round."""

    rates: dict[Link, float] = field(default_factory=dict)
    kinds: dict[Link, Kind] = field(default_factory=dict)
    rounds: dict[Link, int] = field(default_factory=dict)

    def scope(self, link: Link) -> str:
        """Inside the node or between nodes."""
        return self.kinds[link][0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rank's best pair in one direction compares, over the kinds of one scope."""

    ratio: float
    value: float
    reference: float
    partners: int


def pair_culprits(
    result: ProbeResult,
    limits: Floors,
    explained: Collection[int],
    also: Mapping[str, Collection[int]],
) -> tuple[Culprit, ...]:
    """Slow ranks, nodes, rails and links. Pairs of `explained` ranks (`also`: per scope) accuse nobody."""
    first, second = _table(result, 0), _table(result, 1)
    found: list[Culprit] = []
    for scope in (INSIDE, BETWEEN):
        out = frozenset(explained) | frozenset(also.get(scope, ()))
        slow = _slow_ranks(result, first, second, scope, out, limits)
        found += _grouped(result, first, scope, slow)
        found += _slow_links(result, first, second, scope, out | set(slow), limits)
    return tuple(found)


def pair_kinds(result: ProbeResult) -> tuple[str, ...]:
    """Which kinds of culprit the pairs could name."""
    table = _table(result, 0)
    ends = {r for link in table.rates for r in link}
    kinds = [EITHER_END] if table.rates else []
    if len(ends) > 2:
        kinds += [TRANSFER, LINK]
    places = [h for h, ranks in hosts(result).items() if ends & set(ranks)]
    if len(places) > 2 and len(ends) > len(places):
        kinds += [NODE, RAIL]
    return tuple(kinds)


def spread(result: ProbeResult) -> str:
    """The pairs' rates in words, per scope; "" without pairs."""
    table, said = _table(result, 0), []
    for scope in (INSIDE, BETWEEN):
        rates = [v for k, v in table.rates.items() if table.scope(k) == scope]
        if rates:
            middle = statistics.median(rates)
            said.append(
                f"{len(rates)} directed pairs {scope}: {middle:.3g} GB/s, "
                f"slowest {min(rates) / middle:.2f} of the median"
            )
    return "; ".join(said)


def _table(result: ProbeResult, run: int) -> Table:
    ranks = {r.rank: r for r in result.ranks}
    by_host = hosts(result)
    linked = nvlinked(result)
    best: dict[Link, PairTiming] = {}
    for rank in result.ranks:
        for p in rank.pairs:
            known = p.source in ranks and p.target in ranks and p.source != p.target
            if known and p.run == run and p.bytes > 0 and finite(p.seconds):
                old = best.get((p.source, p.target))
                if old is None or (p.alone, p.bytes) > (old.alone, old.bytes):
                    best[p.source, p.target] = p
    table = Table()
    middle = statistics.median if result.device == "cuda" else min
    for link, p in best.items():
        table.rates[link] = p.bytes / middle(finite(p.seconds)) / 1e9
        table.kinds[link] = _kind(ranks[link[0]], ranks[link[1]], by_host, linked)
        table.rounds[link] = p.round
    return table


def _kind(
    a: RankMeasurement, b: RankMeasurement, by_host: Mapping[str, tuple[int, ...]], linked: bool
) -> Kind:
    gpus = tuple(sorted({a.gpu_name or "", b.gpu_name or ""}))
    if a.host != b.host:
        same = local_rank(a, by_host) == local_rank(b, by_host)
        return (BETWEEN, "one rail" if same else "two rails", *gpus)
    across = not linked and a.numa is not None and b.numa is not None and a.numa != b.numa
    return (INSIDE, "across NUMA nodes" if across else "near", *gpus)


Best = dict[Kind, dict[int, list[tuple[float, int]]]]
"""Kind -> rank -> its two best (rate, partner) in one direction."""


def _best(table: Table, end: int, scope: str, without: Collection[int]) -> Best:
    found: Best = defaultdict(lambda: defaultdict(list))
    for link, rate in table.rates.items():
        if table.scope(link) == scope and link[0] not in without and link[1] not in without:
            two = found[table.kinds[link]][link[end]]
            two.append((rate, link[1 - end]))
            two.sort(reverse=True)
            del two[2:]
    return found


def _verdict(best: Best, rank: int, partners: int) -> Verdict | None:
    """The rank's best pair of every kind against the best of others without it; the least bad kind counts."""
    judged = []
    for ranks in best.values():
        if rank not in ranks:
            continue
        own = ranks[rank][0][0]
        others = [
            max((v for v, q in two if q != rank), default=None) for r, two in ranks.items() if r != rank
        ]
        known = [v for v in others if v is not None]
        if known:
            reference = statistics.median(known)
            judged.append(Verdict(reference / own, own, reference, partners))
    return min(judged, key=lambda v: v.ratio, default=None)


def _partners(table: Table, end: int, scope: str, without: Collection[int]) -> dict[int, int]:
    """Rank -> how many others it was paired with in one direction."""
    counts: dict[int, int] = defaultdict(int)
    for link in table.rates:
        if table.scope(link) == scope and link[0] not in without and link[1] not in without:
            counts[link[end]] += 1
    return counts


def _slow_ranks(
    result: ProbeResult, first: Table, second: Table, scope: str, out: frozenset[int], limits: Floors
) -> dict[int, Culprit]:
    found = {}
    best = [_best(first, end, scope, out) for end in (0, 1)]
    partners = [_partners(first, end, scope, out) for end in (0, 1)]
    for rank in result.ranks:
        sides = {}
        for end, word in ((0, "sending"), (1, "receiving")):
            verdict = _verdict(best[end], rank.rank, partners[end].get(rank.rank, 0))
            if verdict is None or verdict.partners < 2 or verdict.ratio < limits.warn:
                continue
            sides[word] = (verdict, _rank_again(second, rank.rank, end, scope, verdict.reference, limits))
        if not sides:
            continue
        verdict, again = max(sides.values(), key=lambda s: s[0].ratio)
        made = Culprit(
            TRANSFER,
            verdict.ratio,
            verdict.value,
            verdict.reference,
            "GB/s",
            ranks=(rank.rank,),
            host=rank.host or None,
            scope=scope,
            both_ways=len(sides) > 1,
            evidence=(
                f"{' and '.join(sides)}: its best of {verdict.partners} pairs against the others' best",
            ),
        )
        if (kept := decided(made, limits, again, limits.warn, limits.fail)) is not None:
            found[rank.rank] = kept
    return found


def _rank_again(
    second: Table, rank: int, end: int, scope: str, reference: float, limits: Floors
) -> bool | None:
    rates = [v for k, v in second.rates.items() if k[end] == rank and second.scope(k) == scope]
    if not rates:
        return None
    fresh = [v for k, v in second.rates.items() if rank not in k and second.scope(k) == scope]
    return (max(fresh) if fresh else reference) / max(rates) >= limits.warn


def _grouped(
    result: ProbeResult, table: Table, scope: str, slow: Mapping[int, Culprit]
) -> tuple[Culprit, ...]:
    """One node or one rail in place of all of its ranks."""
    by_host = hosts(result)
    taking = {r for link in table.rates if table.scope(link) == scope for r in link}
    rest = dict(slow)
    made = []
    rails: dict[int, set[int]] = defaultdict(set)
    for rank in result.ranks:
        if rank.rank in taking:
            rails[local_rank(rank, by_host)].add(rank.rank)
    if scope == BETWEEN and len(rails) > 1:
        for index, members in sorted(rails.items()):
            if len(members) > 1 and members <= set(rest) and len(rest) < len(taking):
                made.append(_group(RAIL, [rest.pop(r) for r in sorted(members)], scope, rail=index))
    for host, ranks in by_host.items():
        members = taking & set(ranks)
        if len(by_host) > 1 and len(members) > 1 and members <= set(rest):
            made.append(_group(NODE, [rest.pop(r) for r in sorted(members)], scope, host=host))
    return (*made, *sorted(rest.values(), key=lambda c: -c.ratio))


def _group(
    kind: str, parts: list[Culprit], scope: str, *, host: str | None = None, rail: int | None = None
) -> Culprit:
    middle = sorted(parts, key=lambda c: c.ratio)[len(parts) // 2]
    return replace(
        middle,
        kind=kind,
        ranks=tuple(r for c in parts for r in c.ranks),
        host=host,
        rail=rail,
        scope=scope,
        both_ways=all(c.both_ways for c in parts),
        confirmed=all(c.confirmed for c in parts),
        fails=all(c.fails for c in parts),
        evidence=(f"{len(parts)} of its ranks, and no other, are slow {scope}",),
    )


def _references(table: Table, free: Collection[Link]) -> dict[Link, float | None]:
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
        mates = together[table.kinds[k], table.rounds[k]]
        if middle is not None and table.rates[k] < middle and len(mates) >= ROUND_MATES:
            found[k] = min(middle, statistics.median(table.rates[m] for m in mates if set(m) != set(k)))
    return found


def _middle(ordered: Sequence[float]) -> float | None:
    return statistics.median(ordered) if ordered else None


def _slow_links(
    result: ProbeResult, first: Table, second: Table, scope: str, out: frozenset[int], limits: Floors
) -> tuple[Culprit, ...]:
    free = [k for k in first.rates if first.scope(k) == scope and not out & set(k)]
    references = _references(first, free)
    slow = {k: r / first.rates[k] for k, r in references.items() if r and r / first.rates[k] >= limits.warn}
    pairs = {(min(k), max(k)) for k in slow}
    every = {(min(k), max(k)) for k in free}
    found = []
    for pair in sorted(pairs):
        if not _isolated(pair, pairs, every):
            continue
        ways = [k for k in (pair, pair[::-1]) if k in slow]
        worst = max(ways, key=lambda k: slow[k])
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
        again = _link_again(second, worst, reference, limits)
        if (kept := decided(made, limits, again, limits.warn, limits.fail)) is not None:
            found.append(kept)
    return (*found, *_one_direction(first, second, free, references, limits, scope))


def _way_back(table: Table, link: Link) -> tuple[str, ...]:
    back = table.rates.get((link[1], link[0]))
    return () if back is None else (f"the other way {back:.3g} GB/s",)


def _isolated(pair: Link, slow: Collection[Link], every: Collection[Link]) -> bool:
    """Whether few enough pairs of both ends and in all are slow for this one to be a fault, not a layout."""
    if len(slow) > max(1, ISOLATED_SHARE * len(every)):
        return False
    for end in pair:
        own, bad = (sum(end in p for p in pairs) for pairs in (every, slow))
        if bad > max(1, ISOLATED_SHARE * own):
            return False
    return True


def _link_again(second: Table, link: Link, reference: float, limits: Floors) -> bool | None:
    rate = second.rates.get(link)
    if rate is None:
        return None
    fresh = _references(second, [k for k in second.rates if second.kinds[k] == second.kinds[link]])
    return (fresh[link] or reference) / rate >= limits.warn


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
