"""Ranks without a good pair, and the node or rail that all of them are.

A rank's best pair counts, not its median: with one bad rank in four, half of all pairs are bad.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fsdp_doctor.probe.pair_table import Kind, Table
from fsdp_doctor.probe.peers import BETWEEN, decided, hosts, local_rank
from fsdp_doctor.subjects.fabric import NODE, RAIL, TRANSFER, Culprit
from fsdp_doctor.subjects.probe import ProbeResult
from fsdp_doctor.tables.probe_thresholds import Floors

Best = dict[Kind, dict[int, list[tuple[float, int]]]]
"""Kind -> rank -> its two best (rate, partner) in one direction."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rank's best pair in one direction compares, over the kinds of one scope."""

    ratio: float
    value: float
    reference: float
    partners: int


def slow_ranks(
    result: ProbeResult, first: Table, second: Table, scope: str, out: frozenset[int], limits: Floors
) -> dict[int, Culprit]:
    """Rank -> culprit, for ranks whose pairs in one scope are all slow; `second` is the repetition."""
    found = {}
    best = [_best(first, end, scope, out) for end in (0, 1)]
    partners = [_partners(first, end, scope, out) for end in (0, 1)]
    suspected: dict[int, dict[int, Verdict]] = defaultdict(dict)
    for rank in result.ranks:
        for end in (0, 1):
            verdict = _verdict(best[end], rank.rank, partners[end].get(rank.rank, 0))
            if verdict is not None and verdict.partners > 1 and verdict.ratio >= limits.warn:
                suspected[rank.rank][end] = verdict
    for rank in result.ranks:
        sides = {
            ("sending", "receiving")[end]: (
                v,
                _rank_again(second, rank.rank, end, scope, v, suspected, limits),
            )
            for end, v in suspected.get(rank.rank, {}).items()
        }
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


def _rank_again(
    second: Table,
    rank: int,
    end: int,
    scope: str,
    verdict: Verdict,
    suspected: Collection[int],
    limits: Floors,
) -> bool | None:
    """Whether the rank's best repeated pair of every kind is slow again beside repeated pairs of sound ranks.

    The middle of the others counts: their best of several grows with their number, on shared cores by a lot.
    """
    own: dict[Kind, list[float]] = defaultdict(list)
    fresh: dict[Kind, list[float]] = defaultdict(list)
    mine, controls = [], []
    for k, rate in second.rates.items():
        if second.scope(k) == scope and k[end] == rank:
            own[second.kinds[k]].append(rate)
            mine.append(k)
        elif not set(k) & set(suspected):
            fresh[second.kinds[k]].append(rate)
            controls.append(k)
    if limits.unqueued and mine and not second.apart(mine, controls):
        return False
    ratios = [
        (statistics.median(fresh[k]) if fresh[k] else verdict.reference) / max(v) for k, v in own.items()
    ]
    return min(ratios) >= limits.warn if ratios else None


def grouped(
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
        evidence=(f"all {len(parts)} of its ranks are slow {scope}",),
    )
