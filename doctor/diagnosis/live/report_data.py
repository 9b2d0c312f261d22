"""A look at a running job as JSON values: what `diagnose` answers of logs, and the stacks it was seen in."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.diagnosis.live.grouping import name
from fsdp_doctor.diagnosis.live.words import does, where
from fsdp_doctor.subjects.stacks import (
    ALL_WAIT,
    COLLECTIVE,
    ELSEWHERE,
    GONE,
    LOADING,
    STOPPED,
    LiveConclusion,
    LiveJob,
    RankProcess,
)

CAUSES: Mapping[str, tuple[str, str | None, str]] = {
    STOPPED: ("LOG801", "nccl", "a rank is stopped"),
    ELSEWHERE: ("LOG802", "nccl", "a rank is elsewhere than the ranks that wait for it"),
    LOADING: ("LOG803", "slow", "ranks wait for their data"),
    ALL_WAIT: ("LOG804", "nccl", "cannot tell: all ranks of this host wait in the same collective"),
    GONE: ("LOG805", "nccl", "a rank has no process any more"),
}
"""Kind of a conclusion -> code, row and title."""
FRAMES = 40


def live_data(job: LiveJob) -> dict[str, object]:
    """Cause, culprits and victims as of a log; with all stacks under `live`."""
    causes = [c for c in job.conclusions if c.kind in CAUSES]
    first = causes[0] if causes else None
    return {
        "cause": None if first is None else _cause(first),
        "culprit_ranks": [] if first is None else list(first.ranks),
        "victims": [] if first is None else list(first.waiting),
        "evidence": [] if first is None else _evidence(job, first),
        "fixes": [{"text": c.fix, "command": c.command} for c in causes if c.fix],
        "ranks": [_rank(p) for p in job.processes],
        "live": {
            "host": job.host,
            "job": job.job,
            "world_size": job.world_size,
            "seconds": round(job.seconds, 2),
            "groups": [
                {"ranks": list(g.members), "kind": g.place.kind, "where": where(g.place)} for g in job.groups
            ],
            "stacks": [_stack(p) for p in job.processes],
            "gpus": [_gpu(job, i) for i in range(len(job.gpus))],
            "other_jobs": list(job.other_jobs),
        },
    }


def _cause(conclusion: LiveConclusion) -> dict[str, object]:
    code, row, title = CAUSES[conclusion.kind]
    return {"code": code, "row": row, "title": title, "confidence": conclusion.confidence}


def _evidence(job: LiveJob, conclusion: LiveConclusion) -> list[dict[str, object]]:
    wanted = [*conclusion.ranks, *conclusion.waiting]
    return [
        {
            "file": p.place.user.file if p.place.user is not None else None,
            "line": p.place.user.line if p.place.user is not None else None,
            "rank": p.rank,
            "time": None,
            "text": does(p.place),
        }
        for number in wanted
        for p in job.processes
        if name(p) == number and p.place is not None and p.threads
    ]


def _rank(process: RankProcess) -> dict[str, object]:
    place = process.place
    waits = place is not None and place.kind == COLLECTIVE and process.threads
    state = "stopped" if process.state in ("T", "t") else "waiting" if waits else "running"
    if process.state in (None, "Z"):
        state = "gone"
    library = place.library if place is not None else None
    return {
        "rank": process.rank,
        "last_seen": None,
        "state": state,
        "collective": library.function if waits and library is not None else None,
    }


def _stack(process: RankProcess) -> dict[str, object]:
    main = next((t for t in process.threads if t.main), None)
    return {
        "pid": process.pid,
        "rank": process.rank,
        "state": process.state,
        "method": process.method,
        "problem": process.problem,
        "moving": process.moving,
        "where": does(process.place) if process.place is not None and process.threads else None,
        "threads": len(process.threads),
        "frames": [
            {"function": f.function, "file": f.file, "line": f.line}
            for f in (main.frames[-FRAMES:] if main is not None else ())
        ],
        "helpers": [{"pid": pid, "where": does(found)} for pid, found in process.helpers],
    }


def _gpu(job: LiveJob, index: int) -> dict[str, object]:
    gpu = job.gpus[index]
    return {
        "index": gpu.index,
        "ranks": list(gpu.ranks),
        "utilisation_percent": gpu.utilisation,
        "power_watts": gpu.power,
        "power_limit_watts": gpu.limit,
        "memory_used_bytes": gpu.memory_used,
    }
