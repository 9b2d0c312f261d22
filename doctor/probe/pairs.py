"""What the tournament of pairs says: a bad rank has no good pair, a bad link leaves both its ends one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fsdp_doctor.probe.pair_links import slow_links
from fsdp_doctor.probe.pair_ranks import grouped, slow_ranks
from fsdp_doctor.probe.pair_table import pair_table
from fsdp_doctor.probe.peers import BETWEEN, INSIDE
from fsdp_doctor.subjects.fabric import Culprit
from fsdp_doctor.subjects.probe import ProbeResult
from fsdp_doctor.tables.probe_thresholds import Floors


def pair_culprits(
    result: ProbeResult,
    limits: Floors,
    explained: Collection[int],
    also: Mapping[str, Collection[int]],
) -> tuple[Culprit, ...]:
    """Slow ranks, nodes, rails and links. Pairs of `explained` ranks (`also`: per scope) accuse nobody."""
    first, second = pair_table(result, 0), pair_table(result, 1)
    place = {r.rank: r.host for r in result.ranks}
    found: list[Culprit] = []
    for scope in (INSIDE, BETWEEN):
        out = frozenset(explained) | frozenset(also.get(scope, ()))
        slow = slow_ranks(result, first, second, scope, out, limits)
        taking = {r for k in first.rates if first.scope(k) == scope and not out & set(k) for r in k}
        if set(slow) == taking:  # all of them cannot be slower than the others: it lies between them
            slow = {}
        found += grouped(result, first, scope, slow)
        slow_at = {r: c.value for r, c in slow.items()}
        found += slow_links(first, second, scope, out, limits, place, slow_at)
    return tuple(found)
