"""The tournament as a table: the rate of every directed pair, and which pairs can be compared.

Those of one kind can: same GPUs, same distance (in the node, across its NUMA nodes where there is no
NVLink, between nodes on one rail, across rails).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fsdp_doctor.probe.peers import BETWEEN, INSIDE, hosts, local_rank, nvlinked
from fsdp_doctor.probe.stats import finite
from fsdp_doctor.probe.tournament import tournament
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, NODE, RAIL, TRANSFER
from fsdp_doctor.subjects.probe import PairTiming, ProbeResult, RankMeasurement

Link = tuple[int, int]
"""Source and target."""
Kind = tuple[str, ...]
"""What pairs must share to be compared; the first word is the scope."""


@dataclass(slots=True)
class Table:
    """GB/s of every directed pair of one run, with each pair's kind and round."""

    rates: dict[Link, float] = field(default_factory=dict)
    kinds: dict[Link, Kind] = field(default_factory=dict)
    rounds: dict[Link, int] = field(default_factory=dict)
    middles: dict[Link, float] = field(default_factory=dict)
    """GB/s of the middle transfer, where `rates` has the fastest."""

    def apart(self, links: Collection[Link], controls: Collection[Link]) -> bool:
        """Whether the fastest transfer over any of these links is slower than the middle one of the controls.

        Waiting for a core adds as much to a transfer as it takes, at random, so on a busy machine no ratio is
        large enough. But of a sound link that takes turns with the controls half of the transfers are faster
        than their middle: that none is, in all turns, is not chance.
        """
        others = [self.middles[k] for k in controls]
        return bool(others) and max(self.rates[k] for k in links) < statistics.median(others)

    def scope(self, link: Link) -> str:
        """Inside the node or between nodes."""
        return self.kinds[link][0]


def pair_table(result: ProbeResult, run: int) -> Table:
    """The pairs of one run; of several measurements of a pair the one taken alone, then the largest."""
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
        table.middles[link] = p.bytes / statistics.median(finite(p.seconds)) / 1e9
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


def pair_kinds(result: ProbeResult) -> tuple[str, ...]:
    """Which kinds of culprit the pairs could name."""
    table = pair_table(result, 0)
    ends = {r for link in table.rates for r in link}
    kinds = [EITHER_END] if table.rates else []
    if len(ends) > 2:
        kinds += [TRANSFER, LINK]
    places = [h for h, ranks in hosts(result).items() if ends & set(ranks)]
    if len(places) > 2 and len(ends) > len(places):
        kinds += [NODE, RAIL]
    return tuple(kinds)


def all_pairs(result: ProbeResult) -> bool:
    """Whether both directions of every pair were measured that a tournament of these ranks holds."""
    rates = pair_table(result, 0).rates
    planned = {p for r in tournament(hosts(result)) for p in r.pairs}
    there = len({r.rank for r in result.ranks}) == result.world_size
    return there and all((a, b) in rates and (b, a) in rates for a, b in planned)


def spread(result: ProbeResult) -> str:
    """The pairs' rates in words, per scope; "" without pairs."""
    table, said = pair_table(result, 0), []
    for scope in (INSIDE, BETWEEN):
        rates = [v for k, v in table.rates.items() if table.scope(k) == scope]
        if rates:
            middle = statistics.median(rates)
            said.append(
                f"{len(rates)} directed pairs {scope}: {middle:.3g} GB/s, "
                f"slowest {min(rates) / middle:.2f} of the median"
            )
    return "; ".join(said)
