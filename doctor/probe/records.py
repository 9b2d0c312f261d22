"""What the ranks noted besides times: wrong bytes, counters that grew, how long starting took."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from fsdp_doctor.probe.figures import by_collective
from fsdp_doctor.probe.stats import finite
from fsdp_doctor.subjects.fabric import Grown, Mismatch, Start
from fsdp_doctor.subjects.probe import ALL_GATHER, WORLD, ProbeResult
from fsdp_doctor.tables.probe_counters import Growth, counter
from fsdp_doctor.tables.probe_thresholds import (
    IMPORT_SECONDS,
    INIT_OUTLIER,
    INIT_OUTLIER_SECONDS,
    INIT_PER_RANK,
    INIT_SECONDS,
)


def mismatches(result: ProbeResult) -> tuple[tuple[Mismatch, ...], int]:
    """Collectives whose data were wrong, and how many were compared."""
    found, compared = [], 0
    for (op, size, group, _), timings in by_collective(result.ranks).items():
        compared += any(t.correct is not None for _, t in timings)
        wrong = [(q, t) for q, t in timings if t.correct is False or t.bad_slices]
        if not wrong:
            continue
        members = tuple(q for q, _ in timings)
        positions = {p for _, t in wrong for p in t.bad_slices}
        inside = group != WORLD
        slices = tuple(sorted({members[p] if inside and 0 <= p < len(members) else p for p in positions}))
        receivers = tuple(sorted(q for q, _ in wrong))
        found.append(
            Mismatch(
                op,
                size,
                group,
                receivers,
                slices,
                _pattern(result, op, [q for q, _ in timings], receivers, slices),
                next((t.first_bad for _, t in wrong if t.first_bad), None),
            )
        )
    return tuple(found), compared


def _pattern(
    result: ProbeResult, op: str, group: Sequence[int], receivers: Collection[int], slices: Sequence[int]
) -> str:
    if len(slices) == 1 and len(receivers) >= max(len(group) - 1, 2):
        return (
            f"every rank holds the part of rank {slices[0]} wrong: that rank sends wrong bytes "
            "(its GPU's memory, or its link)"
        )
    if len(receivers) == 1 and len(group) > 2:
        (only,) = receivers
        return f"rank {only} alone holds wrong bytes: its GPU's memory or its link"
    if op == ALL_GATHER and result.rotated and len(slices) > 1:
        return (
            "parts of several ranks are in the wrong place with reordered GPUs: the NVLS all-gather of "
            "NCCL 2.26.2 does this (nccl#1906)"
        )
    return "several ranks and parts: the transport or the backend's algorithm"


def counters(result: ProbeResult) -> tuple[tuple[Grown, ...], int]:
    """Error and congestion counters that grew, and how many counters could be compared."""
    found, compared = [], 0
    seen: set[tuple[str, str]] = set()
    for rank in sorted(result.ranks, key=lambda r: r.rank):
        for name in sorted(rank.counters_before.keys() & rank.counters_after.keys()):
            shared = name.startswith(("ib/", "net/"))
            if shared and (rank.host, name) in seen:
                continue
            seen.add((rank.host, name))
            compared += 1
            known = counter(name)
            delta = rank.counters_after[name] - rank.counters_before[name]
            # A counter that fell was reset or wrapped: its growth is not known.
            if known is not None and known.growth is not Growth.TRAFFIC and delta > 0:
                found.append(Grown(name, known.plain, known.growth.name, delta, rank.rank, rank.host))
    return tuple(found), compared


def starts(result: ProbeResult) -> tuple[tuple[Start, ...], tuple[str, ...]]:
    """Slow imports and slow connecting, and what was timed, in words."""
    imports: dict[int, float] = {}
    inits: dict[int, float] = {}
    for r in result.ranks:
        imported = finite([r.import_seconds or 0.0])
        connected = finite([r.init_seconds or 0.0]) + finite([r.connect_seconds or 0.0])
        if imported:
            imports[r.rank] = imported[0]
        if r.init_seconds is not None and connected:
            inits[r.rank] = sum(connected)
    found, timed = [], []
    limit = INIT_SECONDS + INIT_PER_RANK * result.world_size
    for what, values, most in (("import", imports, IMPORT_SECONDS), ("init", inits, limit)):
        if not values:
            continue
        middle = statistics.median(values.values())
        timed.append(f"{what} {middle:.1f} s (slowest {max(values.values()):.1f} s)")
        if middle > most:
            found.append(Start(what, middle, most))
            continue
        late = tuple(
            sorted(q for q, s in values.items() if s > INIT_OUTLIER_SECONDS and s > INIT_OUTLIER * middle)
        )
        if late:
            found.append(Start(what, max(values[q] for q in late), INIT_OUTLIER * middle, late))
    return tuple(found), tuple(timed)
