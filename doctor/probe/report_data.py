"""A probe's figures as JSON values: what the command prints and other tools read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fsdp_doctor.codec import whole_json
from fsdp_doctor.probe.figures import curves
from fsdp_doctor.probe.stats import finite
from fsdp_doctor.subjects.fabric import Culprit, Fabric, Figure
from fsdp_doctor.subjects.probe import WORLD, ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_counters import counter


def data(result: ProbeResult, fabric: Fabric) -> dict[str, object]:
    """Everything but the findings. Times in microseconds or seconds, rates in GB/s (10^9)."""
    return {
        "backend": result.backend,
        "device": result.device,
        "world_size": result.world_size,
        "torch": result.torch,
        "nccl": result.nccl,
        "hosts": sorted({r.host for r in result.ranks if r.host}),
        "ops": _ops(fabric),
        "groups": [_group(f) for f in fabric.figures if f.group != WORLD],
        "summary": _summary(fabric),
        "init_seconds": _slowest([r.init_seconds for r in result.ranks]),
        "connect_seconds": _slowest([r.connect_seconds for r in result.ranks]),
        "ranks": [_rank(r) for r in result.ranks],
        "missing": list(result.missing),
        "pairs": _pairs(result),
        "slow": [_culprit(c) for c in fabric.culprits],
        "expected": [whole_json(e) for e in fabric.expectations],
        "transports": whole_json(result.transports) if result.transports else None,
        "counters": {str(r.rank): _grown(r) for r in result.ranks if r.counters_before},
        "environment": dict(result.environment),
        "skipped": list(result.skipped),
        "plan": whole_json(result.plan),
        "deadline_passed": result.deadline_passed,
    }


def _ops(fabric: Fabric) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for f in fabric.figures:
        if f.group == WORLD and f.run == 0:
            found.setdefault(f.op, {})[str(f.bytes)] = _figure(f)
    return found


def _figure(f: Figure) -> dict[str, object]:
    return {
        "time_us": {
            "min": _us(f.minimum),
            "median": _us(f.median),
            "p90": _us(f.p90),
            "p99": _us(f.p99),
            "max": _us(f.maximum),
            "ci95": [_us(v) for v in f.interval],
        },
        "algbw_gbps": round(f.algbw, 6),
        "busbw_gbps": round(f.busbw, 6),
        "correct": f.correct,
        "iterations": f.count,
        "back_to_back_us": None if f.back_to_back is None else _us(f.back_to_back),
        "skew_us": None if f.skew is None else _us(f.skew),
    }


def _group(f: Figure) -> dict[str, object]:
    return {"op": f.op, "bytes": f.bytes, "group": f.group, "run": f.run, **_figure(f)}


def _summary(fabric: Fabric) -> dict[str, object]:
    """Latency at small and bandwidth at large sizes, by operation."""
    return {
        op: {
            "latency_us": None if c.latency is None else _us(c.latency),
            "bandwidth_gbps": round(c.bandwidth, 6),
            "half_of_it_at_bytes": None if c.half_size is None else round(c.half_size),
        }
        for op, c in curves(fabric.figures).items()
    }


def _rank(r: RankMeasurement) -> dict[str, object]:
    walls = [v for w in r.work if w.run == 0 for v in finite(w.wall_seconds)]
    thinks = [v for c in r.collectives if c.run == 0 for v in c.think_seconds]
    return {
        "rank": r.rank,
        "host": r.host,
        "local_rank": r.local_rank,
        "gpu": r.gpu,
        "gpu_name": r.gpu_name,
        "gpu_uuid": r.gpu_uuid,
        "import_seconds": r.import_seconds,
        "init_seconds": r.init_seconds,
        "connect_seconds": r.connect_seconds,
        "work_ms": round(statistics.median(walls) * 1e3, 4) if walls else None,
        "think_us": _us(statistics.median(thinks)) if thinks else None,
        "copies": [_copy(r, d) for d in ("h2d", "d2h") if any(c.direction == d for c in r.copies)],
        "stage": r.stage,
        "detail": r.detail,
        "error": whole_json(r.error) if r.error else None,
        "exit_code": r.exit_code,
        "hung": r.hung,
    }


def _copy(r: RankMeasurement, direction: str) -> dict[str, object]:
    timed = [c for c in r.copies if c.direction == direction and c.run == 0 and finite(c.seconds)]
    rates = {c.alone: c.bytes / statistics.median(finite(c.seconds)) / 1e9 for c in timed}
    return {
        "direction": direction,
        "alone_gbps": round(rates[True], 3) if True in rates else None,
        "together_gbps": round(rates[False], 3) if False in rates else None,
    }


def _pairs(result: ProbeResult) -> list[dict[str, object]]:
    return [
        {
            "source": p.source,
            "target": p.target,
            "bytes": p.bytes,
            "gbps": round(p.bytes / statistics.median(finite(p.seconds)) / 1e9, 6),
            "run": p.run,
        }
        for r in result.ranks
        for p in r.pairs
        if finite(p.seconds)
    ]


def _culprit(c: Culprit) -> dict[str, object]:
    made = whole_json(c)
    return dict(made) if isinstance(made, Mapping) else {}


def _grown(r: RankMeasurement) -> dict[str, object]:
    """Counters that changed and mean something, before and after; and how many were read."""
    changed = {
        name: [before, r.counters_after[name]]
        for name, before in r.counters_before.items()
        if r.counters_after.get(name, before) != before and counter(name) is not None
    }
    return {"read": len(r.counters_before), "changed": changed}


def _slowest(values: list[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
