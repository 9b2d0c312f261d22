"""Nodes and rails by their own collectives: all ranks of one node, one rank of every node."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.probe.figures import largest
from fsdp_doctor.probe.peers import BETWEEN, INSIDE, against_others, decided, hosts, local_rank, named
from fsdp_doctor.subjects.fabric import NODE, RAIL, Culprit, Figure
from fsdp_doctor.subjects.probe import FSDP_OPS, ProbeResult
from fsdp_doctor.tables.probe_thresholds import NODE_FAIL, NODE_WARN, Floors


def groups(
    result: ProbeResult, limits: Floors, figures: Sequence[Figure], before: Sequence[Culprit]
) -> tuple[Culprit, ...]:
    """Nodes and rails whose own collectives are slower than those of the others, unless already explained."""
    by_host = hosts(result)
    inside = named(c for c in before if c.scope != BETWEEN)
    anyone = named(before)
    told = {c.host for c in before if c.kind == NODE}
    nodes = {f"node:{h}": (set(ranks), h) for h, ranks in by_host.items()}
    found = []
    for name, culprit in _slow_groups(result, limits, figures, "node:").items():
        ranks, host = nodes.get(name, (set(), name.partition(":")[2]))
        if host not in told and not ranks & inside:
            found.append(replace(culprit, kind=NODE, ranks=tuple(sorted(ranks)), host=host, scope=INSIDE))
    for name, culprit in _slow_groups(result, limits, figures, "rail:").items():
        index = name.partition(":")[2]
        rail = int(index) if index.isascii() and index.isdigit() else None
        ranks = {r.rank for r in result.ranks if local_rank(r, by_host) == rail}
        if not ranks & anyone and not any(c.rail == rail for c in before if c.kind == RAIL):
            found.append(replace(culprit, kind=RAIL, ranks=tuple(sorted(ranks)), rail=rail, scope=BETWEEN))
    return tuple(found)


def _slow_groups(
    result: ProbeResult, limits: Floors, figures: Sequence[Figure], prefix: str
) -> dict[str, Culprit]:
    warn, fail = (NODE_WARN, NODE_FAIL) if result.device == "cuda" else (limits.warn, limits.fail)
    names = sorted({f.group for f in figures if f.group.startswith(prefix)})
    kinds = dict.fromkeys(range(len(names)))
    worst: dict[str, Culprit] = {}
    for op in FSDP_OPS:
        tops = [{i: f for i, n in enumerate(names) if (f := largest(figures, op, n, run))} for run in (0, 1)]
        first, second = (_costs(result, top) for top in tops)
        repeated = against_others(second, kinds)
        for i, slower in against_others(first, kinds).items():
            again = repeated[i].ratio >= warn and _apart(tops[1], i) if i in repeated else None
            if not _apart(tops[0], i):
                continue
            said = f"{op} {1 / slower.value:.1f} GB/s busbw, others {1 / slower.reference:.1f}"
            made = Culprit(
                prefix, slower.ratio, 1 / slower.value, 1 / slower.reference, "GB/s", evidence=(said,)
            )
            kept = decided(made, limits, again, warn, fail)
            if kept is not None and (names[i] not in worst or kept.ratio > worst[names[i]].ratio):
                worst[names[i]] = kept
    return worst


def _apart(tops: Mapping[int, Figure], index: int) -> bool:
    """Whether the interval of the median lies wholly above those of the others, by their median."""
    others = [f.interval[1] for i, f in tops.items() if i != index]
    return bool(others) and tops[index].interval[0] > statistics.median(others)


def _costs(result: ProbeResult, tops: Mapping[int, Figure]) -> dict[int, float]:
    """Seconds per GB on the wire. On shared cores the fastest iteration is the one that nothing disturbed."""
    shared = result.device != "cuda"
    return {i: (f.minimum / f.median if shared else 1.0) / f.busbw for i, f in tops.items() if f.busbw > 0}
