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
    job = incident.job
    numbers = set(job.ranks_seen) | {r for c in conclusions for r in (*c.culprits, *c.victims)}
    if job.world_size is not None and job.world_size <= MOST:
        numbers |= set(range(job.world_size))
    by_rank: dict[int, list[Hit]] = {}
    for hit in incident.hits:
        if hit.origin.rank is not None:
            by_rank.setdefault(hit.origin.rank, []).append(hit)
    last = {x.rank: x for x in incident.last_lines}
    exits = {e.rank: e for e in incident.exits if e.rank is not None}
    steps: dict[int, int] = {}
    for point in incident.steps:
        if point.rank is not None:
            steps[point.rank] = max(point.step, steps.get(point.rank, 0))
    culprits = {r for c in conclusions for r in c.culprits}
    any_failure = bool(conclusions)
    states = []
    for rank in sorted(numbers)[:MOST]:
        hits = by_rank.get(rank, [])
        entry = exits.get(rank)
        line = last.get(rank)
        times = [
            t for t in (line.origin.time if line else None, *(h.origin.time for h in hits)) if t is not None
        ]
        error = next((h for h in hits if h.kind in (ROOT, LIKELY)), None)
        states.append(
            RankState(
                rank=rank,
                state=_state(
                    hits,
                    error,
                    entry.code if entry else None,
                    rank in culprits,
                    rank in incident.done,
                    any_failure,
                ),
                last_seen=max(times, default=None),
                last_line=line.text if line else "",
                step=steps.get(rank),
                collective=_collective(hits),
                first_error=(error or next((h for h in hits if h.kind == VICTIM), None) or _NONE).text,
                exit=entry.code if entry else None,
                host=job.hosts.get(rank),
            )
        )
    return tuple(states)


class _Nothing:
    text = ""


_NONE = _Nothing()


def _state(
    hits: Sequence[Hit], error: Hit | None, code: int | None, culprit: bool, done: bool, failure: bool
) -> str:
    if signal_of(code) == SIGKILL:
        return KILLED
    if error is not None and (culprit or not any(h.kind == VICTIM for h in hits)):
        return FAILED
    if any(h.kind == VICTIM and h.code != TOLD_TO_STOP for h in hits):
        return WAITING
    if signal_of(code) == SIGTERM:
        return SILENT if culprit else STOPPED
    if code not in (None, 0):
        return FAILED
    if done or code == 0:
        return FINISHED
    return SILENT if failure else RUNNING


def _collective(hits: Sequence[Hit]) -> str:
    for hit in hits:
        if hit.code == TIMEOUT and "seq" in hit.fields:
            size = f" ({hit.fields['nin']} elements)" if "nin" in hit.fields else ""
            return f"{hit.fields.get('op', '')} #{hit.fields['seq']}{size}"
    for hit in hits:
        if hit.code == PROGRESS:
            return f"enqueued #{hit.fields['enq']}, completed #{hit.fields['done']}"
    return ""
