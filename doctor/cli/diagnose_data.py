"""A diagnosis as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from fsdp_doctor.diagnosis.summary import clock
from fsdp_doctor.subjects.diagnosis import Conclusion, Diagnosis, Proof
from fsdp_doctor.subjects.incident import Incident, OomReport

MAX_RANKS = 4096
MAX_INPUTS = 500


def data(incident: Incident, diagnosis: Diagnosis) -> dict[str, object]:
    """What the report's `data` holds."""
    cause = diagnosis.cause
    return {
        "cause": None if cause is None else _cause(cause),
        "culprit_ranks": [] if cause is None else list(cause.culprits),
        "culprit_host": None if cause is None else cause.host,
        "victims": [] if cause is None else list(cause.victims),
        "evidence": [] if cause is None else [_proof(p) for p in cause.evidence],
        "fixes": [] if cause is None else _fixes(cause),
        "alternatives": [] if cause is None else list(cause.alternatives),
        "record_next": [] if cause is None else list(cause.record_next),
        "other_causes": [_whole(c) for c in diagnosis.conclusions[1:]],
        "ranks": [
            {
                "rank": r.rank,
                "last_seen": clock(r.last_seen) or None,
                "state": r.state,
                "collective": r.collective or None,
                "step": r.step,
                "first_error": r.first_error or None,
                "last_line": r.last_line or None,
                "exit": r.exit,
                "host": r.host,
            }
            for r in diagnosis.ranks[:MAX_RANKS]
        ],
        "world_size": incident.job.world_size,
        "world_size_stated": incident.job.stated,
        "ooms": [_oom(o) for o in incident.ooms[:16]],
        "memory_snapshots": [asdict(s) for s in incident.snapshots[:16]],
        "timeline": list(diagnosis.timeline),
        "summary": diagnosis.summary,
        "inputs": [
            {"name": i.name, "kind": i.kind, "bytes": i.bytes, "lines": i.lines, "problem": i.problem or None}
            for i in incident.inputs[:MAX_INPUTS]
        ],
        "notes": list(diagnosis.notes),
    }


def _cause(c: Conclusion) -> dict[str, object]:
    return {
        "code": c.code,
        "row": c.row,
        "title": c.title,
        "confidence": c.confidence,
        "why": c.why,
        "host": c.host,
        "device": c.device,
        "attempt": c.attempt,
    }


def _whole(c: Conclusion) -> dict[str, object]:
    return {
        **_cause(c),
        "culprit_ranks": list(c.culprits),
        "evidence": [_proof(p) for p in c.evidence],
        "fixes": _fixes(c),
    }


def _proof(p: Proof) -> dict[str, object]:
    return {
        "file": p.file,
        "line": p.line,
        "rank": p.rank,
        "time": clock(p.time) or None,
        "text": p.text.strip(),
    }


def _fixes(c: Conclusion) -> list[Mapping[str, object]]:
    return [{"text": f.text, "command": f.command} for f in c.fixes]


def _oom(o: OomReport) -> dict[str, object]:
    return {
        "rank": o.origin.rank,
        "file": o.origin.file,
        "line": o.origin.line,
        "gpu": o.gpu,
        "requested": o.requested,
        "total": o.total,
        "free": o.free,
        "in_use": o.in_use,
        "allocated": o.allocated,
        "unallocated": o.unallocated,
        "private_pools": o.private_pools,
        "allowed": o.allowed,
        "other_processes": {str(pid): size for pid, size in o.others.items()},
    }
