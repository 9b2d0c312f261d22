"""Where each rank was at the end."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.diagnosis.culprit.lines import PROGRESS, TIMEOUT, TOLD_TO_STOP
from fsdp_doctor.diagnosis.culprit.signals import SIGKILL, SIGTERM, signal_of
from fsdp_doctor.subjects.diagnosis import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    SILENT,
    STOPPED,
    WAITING,
    Conclusion,
    RankState,
)
from fsdp_doctor.subjects.incident import LIKELY, ROOT, VICTIM, Hit, Incident

MOST = 4096


def rank_states(incident: Incident, conclusions: Sequence[Conclusion]) -> tuple[RankState, ...]:
    """One state per rank that was seen or should be there."""
    hits: dict[int, list[Hit]] = {}
    for hit in incident.hits:
        if hit.origin.rank is not None:
            hits.setdefault(hit.origin.rank, []).append(hit)
    lines = {x.rank: x for x in incident.last_lines}
    exits = {e.rank: e.code for e in incident.exits}
    steps: dict[int, int] = {}
    for point in incident.steps:
        if point.rank is not None:
            steps[point.rank] = max(point.step, steps.get(point.rank, 0))
    culprits = {r for c in conclusions for r in c.culprits}
    states = []
    for rank in _ranks(incident, conclusions):
        own, line, code = hits.get(rank, []), lines.get(rank), exits.get(rank)
        times = [h.origin.time for h in own] + ([line.origin.time] if line else [])
        unheard = SILENT if conclusions else RUNNING
        ended = FINISHED if rank in incident.done or code == 0 else unheard
        states.append(
            RankState(
                rank=rank,
                state=_state(own, code, rank in culprits, ended),
                last_seen=max((t for t in times if t is not None), default=None),
                last_line=line.text if line else "",
                step=steps.get(rank),
                collective=_collective(own),
                first_error=_first_error(own),
                exit=code,
                host=incident.job.hosts.get(rank),
            )
        )
    return tuple(states)


def _ranks(incident: Incident, conclusions: Sequence[Conclusion]) -> list[int]:
    job = incident.job
    ranks = {*job.ranks_seen, *(r for c in conclusions for r in (*c.culprits, *c.victims))}
    if job.world_size is not None and job.world_size <= MOST:
        ranks |= set(range(job.world_size))
    return sorted(ranks)[:MOST]


def _state(hits: Sequence[Hit], code: int | None, culprit: bool, ended: str) -> str:
    """The state by a rank's lines and its exit code, where they tell; else `ended`."""
    signal = signal_of(code)
    error = any(h.kind in (ROOT, LIKELY) for h in hits)
    suffers = any(h.kind == VICTIM for h in hits)
    if signal == SIGKILL:
        return KILLED
    if error and (culprit or not suffers):
        return FAILED
    if any(h.kind == VICTIM and h.code != TOLD_TO_STOP for h in hits):
        return WAITING
    if signal == SIGTERM:
        return SILENT if culprit else STOPPED
    return ended if code in (None, 0) else FAILED


def _first_error(hits: Sequence[Hit]) -> str:
    """Its first error of its own, else the first consequence."""
    for kinds in ((ROOT, LIKELY), (VICTIM,)):
        for hit in hits:
            if hit.kind in kinds:
                return hit.text
    return ""


def _collective(hits: Sequence[Hit]) -> str:
    """The collective in which it timed out, else how far it came."""
    for hit in hits:
        if hit.code == TIMEOUT and "seq" in hit.fields:
            size = f" ({hit.fields['nin']} elements)" if "nin" in hit.fields else ""
            return f"{hit.fields.get('op', '')} #{hit.fields['seq']}{size}"
    for hit in hits:
        if hit.code == PROGRESS:
            return f"enqueued #{hit.fields['enq']}, completed #{hit.fields['done']}"
    return ""
