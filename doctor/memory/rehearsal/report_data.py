"""A rehearsal as the `data` of a report."""

from __future__ import annotations

from dataclasses import asdict

from fsdp_doctor.memory.rehearsal.answers import typical_seconds
from fsdp_doctor.subjects.rehearsal import Rehearsal


def data(found: Rehearsal) -> dict[str, object]:
    """JSON values; bytes are the allocator's blocks of one rank."""
    told: dict[str, object] = {
        "mode": found.mode,
        "measured": found.mode == "gpu",
        "measured_on": found.measured_on or None,
        "torch": found.torch or None,
        "script": found.script,
        "world_size": found.world_size,
        "steps_wanted": found.steps_wanted,
        "steps_done": found.steps_done,
        "ended": found.ended,
        "ended_at": found.ended_at or None,
        "said": found.said or None,
        "optimizers": list(found.optimizers),
        "communicators": found.communicators,
        "assumed": [asdict(a) for a in found.assumed],
        "other_gpus": [asdict(a) for a in found.elsewhere],
        "handled": [asdict(a) for a in found.handled],
        "not_written": [asdict(u) for u in found.unwritten],
        "fits": None,
        "oom": None if found.oom is None else asdict(found.oom),
    }
    f = found.forecast
    if f is None:
        return told
    told |= {
        "peak": {
            "allocated_bytes": f.allocated,
            "workspace_bytes": found.workspaces,
            "init_bytes": found.init_peak,
            "reserved_bytes": f.reserved_low,
            "reserved_high_bytes": f.reserved_high,
            "reserved_expandable_bytes": f.reserved_expandable,
            "device_bytes": f.device,
            "step": f.peak.step,
            "phase": f.peak.phase,
            "operator": f.peak.operator,
            "module": f.peak.module,
            "parts": [asdict(p) for p in f.peak.parts],
            "tensors": [asdict(h) for h in f.peak.holders],
        },
        "steps": [asdict(s) for s in f.steps],
        "steady_bytes": f.steady,
        "fits": f.fits if found.oom is None else False,
        "needed_bytes": f.needed,
        "margin_bytes": f.margin,
        "overhead": {**asdict(f.overhead), "total": f.overhead.total},
        "gpu": {"name": f.gpu, "capacity_bytes": f.capacity},
        "timeline": [asdict(m) for m in f.timeline],
        "step_seconds": [round(s, 4) for s in found.step_seconds],
        "seconds_per_step": typical_seconds(found.step_seconds),
        "unknown_operators": [{"operator": o, "bytes": b} for o, b in f.unknown_operators],
        "substitutions": [asdict(r) for r in f.rules],
    }
    return told
