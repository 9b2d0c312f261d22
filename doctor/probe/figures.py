"""From the ranks' raw iterations to one figure per collective, size, group and run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.probe.curve import Curve, curve
from fsdp_doctor.probe.stats import (
    algbw,
    busbw,
    finite,
    median_interval,
    percentile,
    slowest,
    variation,
)
from fsdp_doctor.subjects.fabric import Figure
from fsdp_doctor.subjects.probe import WORLD, CollectiveTiming, ProbeResult, RankMeasurement

Key = tuple[str, int, str, int]
"""Operation, bytes, group, run."""


def by_collective(
    ranks: Iterable[RankMeasurement],
) -> Mapping[Key, tuple[tuple[int, CollectiveTiming], ...]]:
    """(rank, timing) of every rank that measured the collective."""
    found: dict[Key, list[tuple[int, CollectiveTiming]]] = defaultdict(list)
    for rank in ranks:
        for t in rank.collectives:
            if t.bytes > 0:
                found[t.op, t.bytes, t.group, t.run].append((rank.rank, t))
    return {k: tuple(v) for k, v in found.items()}


def figures(result: ProbeResult) -> tuple[Figure, ...]:
    """Every collective that was timed, world first, by operation, size and run."""
    made = [_figure(k, [t for _, t in v], result.world_size) for k, v in by_collective(result.ranks).items()]
    order = {op: i for i, op in enumerate(result.plan.ops)}
    return tuple(
        sorted(
            (f for f in made if f is not None),
            key=lambda f: (f.group != WORLD, f.group, order.get(f.op, len(order)), f.op, f.bytes, f.run),
        )
    )


def _figure(key: Key, timings: Sequence[CollectiveTiming], world_size: int) -> Figure | None:
    op, size, group, run = key
    behind = finite(slowest([t.barrier_seconds for t in timings]))
    back_to_back = finite(slowest([t.seconds for t in timings]))
    values = behind or back_to_back
    if not values:
        return None
    ranks = world_size if group == WORLD else len(timings)
    median = statistics.median(values)
    verdicts = [t.correct for t in timings if t.correct is not None]
    return Figure(
        op=op,
        bytes=size,
        group=group,
        ranks=ranks,
        run=run,
        count=len(values),
        minimum=min(values),
        median=median,
        p90=percentile(values, 0.90),
        p99=percentile(values, 0.99),
        maximum=max(values),
        interval=median_interval(values),
        variation=variation(values),
        algbw=algbw(size, median),
        busbw=busbw(op, size, median, ranks),
        barrier=bool(behind),
        back_to_back=statistics.median(back_to_back) if back_to_back else None,
        correct=all(verdicts) if verdicts else None,
    )


def curves(found: Iterable[Figure]) -> Mapping[str, Curve]:
    """The curve of each operation over the whole world."""
    points: dict[str, list[Figure]] = defaultdict(list)
    for f in found:
        if f.group == WORLD:
            points[f.op].append(f)
    made = {op: curve(op, fs[0].ranks, ((f.bytes, f.median) for f in fs)) for op, fs in points.items()}
    return {op: c for op, c in made.items() if c is not None}


def largest(found: Iterable[Figure], op: str, group: str = WORLD, run: int = 0) -> Figure | None:
    """The figure of the largest size of one operation."""
    fitting = [f for f in found if f.op == op and f.group == group and f.run == run]
    return max(fitting, key=lambda f: f.bytes, default=None)


def size_words(size: int) -> str:
    """Such as 64 KiB, 1.5 MiB, 1 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"
