"""A forecast as the `data` of a report, and the job it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fsdp_doctor.engine.units import sizes
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
        "plan": about(plan),
        "peak": {
            "allocated_bytes": forecast.allocated,
            "init_bytes": forecast.preparation,
            "reserved_bytes": forecast.reserved_low,
            "reserved_high_bytes": forecast.reserved_high,
            "reserved_expandable_bytes": forecast.reserved_expandable,
            "device_bytes": forecast.device,
            "host_bytes": forecast.host.peak,
            "host_pinned_bytes": forecast.host.pinned,
            "host_pinned_requested_bytes": forecast.host.pinned_requested,
            "host_node_bytes": forecast.host.node,
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
        "substitutions": [asdict(r) for r in forecast.rules],
        "configuration": _said(job),
    }


def plan_data(plan: UnitPlan, job: Job) -> dict[str, object]:
    """What is known without a replay."""
    return {"params": plan.elements, "units": units(plan), "plan": about(plan), "configuration": _said(job)}


def about(plan: UnitPlan) -> dict[str, object]:
    """The plan as a whole."""
    shared = [{"name": p.name, "also": list(p.other_names)} for p in plan.parameters if p.other_names]
    return {
        "api": plan.api,
        "strategy": plan.strategy,
        "world_size": plan.world_size,
        "shard_size": plan.shard_size,
        "wrap": list(plan.wrap),
        "missing": list(plan.missing),
        "suggested": list(plan.suggested),
        "repeated": [asdict(r) for r in plan.repeated],
        "shared": shared,
        "ignored": [p.name for p in plan.parameters if p.ignored],
        "buffer_bytes": sum(b.bytes for b in plan.buffers),
        "order": list(plan.order) if plan.order is not None else None,
    }


def units(plan: UnitPlan) -> list[dict[str, object]]:
    """One entry per unit: what it holds, and the bytes that one rank gathers, keeps and reduces for it."""
    order = plan.order or ()
    shared: dict[int, list[str]] = {}
    for p in plan.parameters:
        if p.other_names:
            shared.setdefault(p.unit, []).append(p.name)
    return [
        {
            "name": u.name,
            "class": u.kind,
            "parent": u.parent,
            "params": size.elements,
            "trainable": size.trainable,
            "frozen": size.elements - size.trainable,
            "dtypes": list(size.dtypes),
            "padded_params": size.padded,
            "gathered_bytes": size.gathered,
            "shard_bytes": size.shard,
            "reduced_bytes": size.reduced,
            "padding_bytes": size.wasted,
            "shared": shared.get(i, []),
            "order": order.index(i) if i in order else None,
        }
        for i, (u, size) in enumerate(zip(plan.units, sizes(plan), strict=True))
    ]


def _said(job: Job) -> dict[str, object]:
    return {k: v for k, v in job.to_json().items() if k not in ("model_args", "batch_args")}
