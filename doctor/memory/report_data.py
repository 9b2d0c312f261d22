"""A forecast as the `data` of a report, and the job it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fsdp_doctor.memory.job import Job
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.unit_plan import UnitPlan


def data(
    forecast: MemoryForecast, plan: UnitPlan, job: Job, advice: Sequence[dict[str, object]] = ()
) -> dict[str, object]:
    """JSON values; bytes are the allocator's blocks of one rank."""
    return {
        "params": plan.elements,
        "units": units(plan),
        "peak": {
            "allocated_bytes": forecast.allocated,
            "reserved_bytes": forecast.reserved_low,
            "reserved_high_bytes": forecast.reserved_high,
            "reserved_expandable_bytes": forecast.reserved_expandable,
            "device_bytes": forecast.device,
            "host_bytes": forecast.host_peak,
            "step": forecast.peak.step,
            "phase": forecast.peak.phase,
            "operator": forecast.peak.operator,
            "module": forecast.peak.module,
            "parts": [asdict(p) for p in forecast.peak.parts],
            "tensors": [asdict(h) for h in forecast.peak.holders],
        },
        "steps": [asdict(s) for s in forecast.steps],
        "steady_bytes": forecast.steady,
        "fits": forecast.fits,
        "needed_bytes": forecast.needed,
        "margin_bytes": forecast.margin,
        "overhead": {**asdict(forecast.overhead), "total": forecast.overhead.total},
        "gpu": {"name": forecast.gpu, "capacity_bytes": forecast.capacity},
        "advice": list(advice),
        "timeline": [asdict(m) for m in forecast.timeline],
        "assumptions": [asdict(a) for a in forecast.assumptions],
        "unknown_operators": [{"operator": o, "bytes": b} for o, b in forecast.unknown_operators],
        "configuration": {k: v for k, v in job.to_json().items() if k not in ("model_args", "batch_args")},
    }


def units(plan: UnitPlan) -> list[dict[str, object]]:
    """One entry per unit, with the elements that it holds."""
    held = [0] * len(plan.units)
    trained = [0] * len(plan.units)
    for p in plan.parameters:
        held[p.unit] += p.elements
        trained[p.unit] += p.elements if p.trainable else 0
    return [
        {"name": u.name, "class": u.kind, "parent": u.parent, "params": held[i], "trainable": trained[i]}
        for i, u in enumerate(plan.units)
    ]
