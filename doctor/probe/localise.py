"""Who is slow, by measurements that can tell: own work, own pauses, own copies, pairs, then groups.

A ring collective cannot name anyone: all its ranks end together, and the last to arrive is as often the
victim as the cause. A rank named by an earlier, more local statistic explains what the later ones show of
it, so that one fault is named once.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdp_doctor.probe.busy import unqueued
from fsdp_doctor.probe.figures import by_collective
from fsdp_doctor.probe.groups import groups
from fsdp_doctor.probe.pair_table import all_pairs, pair_kinds
from fsdp_doctor.probe.pairs import pair_culprits
from fsdp_doctor.probe.peers import (
    BETWEEN,
    against_others,
    decided,
    hosts,
    named,
    nvlinked,
    weighed,
)
from fsdp_doctor.probe.stats import finite, percentile
from fsdp_doctor.subjects.fabric import COMPUTE, COPY, LATE, NODE, RAIL, Culprit, Figure
from fsdp_doctor.subjects.probe import WORLD, ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_thresholds import STARVED, UNDISTURBED, Floors

CPU = "cpu"


def localise(
    result: ProbeResult, figures: Sequence[Figure], limits: Floors | None = None
) -> tuple[Culprit, ...]:
    """Culprits, most local evidence first. Empty where nobody is slower than the peers."""
    limits = limits or weighed(result)
    found = [*compute(result, limits)]
    found += [c for c in late(result, limits) if not named(found) & set(c.ranks)]
    found += [c for c in copies(result, limits) if not named(found) & set(c.ranks)]
    linked = nvlinked(result)
    explained = named(c for c in found if c.kind != COPY or not linked)
    found += pair_culprits(result, limits, explained, {BETWEEN: named(found)})
    return (*found, *groups(result, limits, figures, found))


def compute(result: ProbeResult, limits: Floors) -> tuple[Culprit, ...]:
    """Ranks whose fixed work, without any communication, takes longer than the others'."""
    kinds = {r.rank: r.gpu_name for r in result.ranks}
    alone = limits.unqueued and _queues_known(result)
    first, second = (_work(result, run, unqueued_only=alone) for run in (0, 1))
    least = limits.warn if limits.unqueued and not alone else limits.work
    repeated = against_others(second, kinds)
    found = []
    for rank, slower in against_others(first, kinds).items():
        again = repeated[rank].ratio >= least if rank in repeated else None
        made = Culprit(
            COMPUTE,
            slower.ratio,
            slower.value * 1e3,
            slower.reference * 1e3,
            "ms",
            ranks=(rank,),
            host=_host(result, rank),
            evidence=_starvation(result, rank),
        )
        worst = least if alone else max(least, limits.fail)
        if (kept := decided(made, limits, again, least, worst)) is not None:
            found.append(kept)
    return tuple(sorted(found, key=lambda c: -c.ratio))


def _queues_known(result: ProbeResult) -> bool:
    works = [w for r in result.ranks for w in r.work]
    return bool(works) and all(len(w.waited_seconds) == len(w.wall_seconds) for w in works)


def _work(result: ProbeResult, run: int, *, unqueued_only: bool = False) -> dict[int, float]:
    """Seconds of each rank's fixed work; on shared cores those of the repeats that others disturbed least."""
    series = {
        r.rank: [
            v
            for w in r.work
            if w.run == run
            for v in (
                unqueued(w.wall_seconds, w.waited_seconds, w.cpu_seconds)
                if unqueued_only
                else finite(w.wall_seconds)
            )
        ]
        for r in result.ranks
    }
    share = 0.5 if result.device == "cuda" else UNDISTURBED
    return {rank: percentile(values, share) for rank, values in series.items() if values}


def _waiting(rank: RankMeasurement) -> float | None:
    """Wall over CPU time of the fixed work: above 1 the rank waited for a core."""
    wall = sum(v for w in rank.work if w.cpu_seconds for v in finite(w.wall_seconds))
    cpu = sum(v for w in rank.work for v in finite(w.cpu_seconds))
    return wall / cpu if cpu > 0 and wall > 0 else None


def _starvation(result: ProbeResult, rank: int) -> tuple[str, ...]:
    waits = {r.rank: w for r in result.ranks if (w := _waiting(r)) is not None}
    if rank not in waits:
        return ()
    others = [w for q, w in waits.items() if q != rank]
    usual = statistics.median(others) if others else 1.0
    said = f"wall over CPU time {waits[rank]:.1f}, others {usual:.1f}"
    if waits[rank] >= STARVED * usual:
        return (f"{said}: it waits for a CPU core",)
    return (f"{said}: it has its core, which is slow",)


def late(result: ProbeResult, limits: Floors) -> tuple[Culprit, ...]:
    """Ranks that pause between leaving one collective and entering the next. Needs no common clock."""
    pauses: dict[int, list[tuple[float, float]]] = {r.rank: [] for r in result.ranks}
    flagged = dict.fromkeys(pauses, 0)
    waits: dict[int, list[float]] = {r.rank: [] for r in result.ranks}
    for (_, _, group, _), timings in by_collective(result.ranks).items():
        thinks = {q: statistics.median(x) for q, t in timings if (x := _pauses(t.think_seconds))}
        if group != WORLD or len(thinks) < 2:
            continue
        spans = [v for _, t in timings for v in finite(t.barrier_seconds or t.seconds)]
        limit = max(limits.think_share * (statistics.median(spans) if spans else 0.0), limits.think_seconds)
        for q, t in timings:
            waits[q] += finite(t.seconds)
        for rank, think in thinks.items():
            reference = statistics.median(v for q, v in thinks.items() if q != rank)
            pauses[rank].append((think, reference))
            flagged[rank] += think - reference > limit
    found = []
    for rank, count in flagged.items():
        if count and 2 * count >= len(pauses[rank]):
            think = statistics.median(p for p, _ in pauses[rank])
            reference = statistics.median(p for _, p in pauses[rank])
            found.append(
                Culprit(
                    LATE,
                    think / max(reference, 1e-6),
                    think * 1e3,
                    reference * 1e3,
                    "ms",
                    ranks=(rank,),
                    host=_host(result, rank),
                    confirmed=count > 1,
                    fails=count > 1,
                    evidence=_least_waiting(waits, rank),
                )
            )
    return tuple(sorted(found, key=lambda c: -c.value))


def _pauses(values: Sequence[float]) -> list[float]:
    return [v for v in values if 0 <= v <= 1e7]


def _least_waiting(waits: Mapping[int, Sequence[float]], rank: int) -> tuple[str, ...]:
    own = statistics.median(waits[rank]) if waits[rank] else None
    others = [statistics.median(w) for q, w in waits.items() if q != rank and w]
    if own is None or not others or own >= min(others):
        return ()
    least = min(others) * 1e3
    return (f"it waits least inside the collectives: {own * 1e3:.2f} ms, others {least:.2f} ms or more",)


def copies(result: ProbeResult, limits: Floors) -> tuple[Culprit, ...]:
    """Ranks whose copies between host and GPU are slower than those of the same GPUs."""
    kinds = {r.rank: r.gpu_name for r in result.ranks}
    found: dict[int, Culprit] = {}
    for direction in ("h2d", "d2h"):
        repeated = against_others(_copy_costs(result, direction, 1), kinds)
        for rank, slower in against_others(_copy_costs(result, direction, 0), kinds).items():
            again = repeated[rank].ratio >= limits.warn if rank in repeated else None
            made = Culprit(
                COPY,
                slower.ratio,
                1 / slower.value,
                1 / slower.reference,
                "GB/s",
                ranks=(rank,),
                host=_host(result, rank),
                scope=direction,
            )
            kept = decided(made, limits, again, limits.warn, limits.fail)
            if kept is not None and (rank not in found or kept.ratio > found[rank].ratio):
                found[rank] = kept
    return tuple(sorted(found.values(), key=lambda c: -c.ratio))


def _copy_costs(result: ProbeResult, direction: str, run: int) -> dict[int, float]:
    """Seconds per GB of each rank's largest copy, taken alone where that was done."""
    costs = {}
    for rank in result.ranks:
        timed = [c for c in rank.copies if c.direction == direction and c.run == run and c.bytes > 0]
        best = max(timed, key=lambda c: (c.alone, c.bytes), default=None)
        if best is not None and (values := finite(best.seconds)):
            costs[rank.rank] = statistics.median(values) / (best.bytes / 1e9)
    return costs


@dataclass(frozen=True, slots=True)
class Reach:
    """Which kinds of culprit the measurements could name, and which only among a part of the ranks."""

    whole: tuple[str, ...] = ()
    part: tuple[str, ...] = ()


def examined(result: ProbeResult, figures: Sequence[Figure]) -> Reach:
    """What was measured on all ranks, and what on some of them; a kind is in one of both or in none."""
    pausing = sum(any(_pauses(t.think_seconds) for t in r.collectives) for r in result.ranks)
    copying = min(len(_copy_costs(result, direction, 0)) for direction in ("h2d", "d2h"))
    whole: list[str] = []
    part: list[str] = []
    for kind, count in ((COMPUTE, len(_work(result, 0))), (LATE, pausing), (COPY, copying)):
        if count > 1:
            (whole if count == result.world_size else part).append(kind)
    (whole if all_pairs(result) else part).extend(pair_kinds(result))
    shared = [h for h, ranks in hosts(result).items() if len(ranks) > 1]
    expected = {NODE: len(shared), RAIL: max((len(r) for r in hosts(result).values()), default=0)}
    for kind, prefix in ((NODE, "node:"), (RAIL, "rail:")):
        groups = len({f.group for f in figures if f.group.startswith(prefix)})
        if kind not in whole and groups > 1:
            (whole if groups >= expected[kind] else part).append(kind)
    return Reach(tuple(whole), tuple(dict.fromkeys(k for k in part if k not in whole)))


def work_words(result: ProbeResult) -> str:
    """How even the fixed work is; "" where it was not done by two ranks."""
    times = _work(result, 0)
    if len(times) < 2:
        return ""
    middle = statistics.median(times.values())
    return (
        f"fixed work of {len(times)} ranks {middle * 1e3:.3g} ms, slowest {max(times.values()) / middle:.2f}x"
    )


def _host(result: ProbeResult, rank: int) -> str | None:
    return next((r.host or None for r in result.ranks if r.rank == rank), None)
