"""What a person pastes into an issue, what happened in which order, and what was inferred or not read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from fsdp_doctor.subjects.diagnosis import Conclusion, RankState
from fsdp_doctor.subjects.incident import CONTEXT, Incident

EVENTS = 60
QUOTED = 200
PROBLEMS, SHIFTS = 20, 8
"""Notes of one sort at most."""


def clock(time: float | None) -> str:
    """A time in UTC, to the millisecond."""
    if time is None:
        return ""
    try:
        return (
            datetime.fromtimestamp(time, timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (OverflowError, OSError, ValueError):
        return ""


def summary(incident: Incident, conclusions: Sequence[Conclusion], states: Sequence[RankState]) -> str:
    """One paragraph: the job, the cause, the rank, how it is known, what the others did, what to do."""
    job = incident.job
    size = _size(incident, conclusions)
    versions = ", ".join(f"{n} {v}" for n, v in (("torch", job.torch), ("NCCL", job.nccl)) if v)
    if not conclusions:
        return f"No failure was found in {len(incident.inputs)} input{'s' if len(incident.inputs) > 1 else ''} of {size}."
    cause = conclusions[0]
    parts = [f"In {size}" + (f" ({versions})" if versions else "") + f": {cause.title.rstrip('.')}."]
    if cause.host:
        parts.append(f"Host: {cause.host}.")
    if cause.why:
        parts.append(cause.why if cause.why.endswith((".", "!")) else cause.why + ".")
    waiting = [s.rank for s in states if s.state == "waiting"]
    if waiting:
        parts.append(f"{len(waiting)} rank{'s' if len(waiting) > 1 else ''} only waited.")
    if cause.evidence:
        e = cause.evidence[0]
        where = f"{e.file}:{e.line}" if e.line else e.file  # a dump has no lines
        parts.append(f"Evidence: {where}: {_cut(e.text)}")
    if cause.fixes:
        parts.append(f"Fix: {cause.fixes[0].text}.")
    parts.append(f"(confidence: {cause.confidence})")
    return " ".join(parts)


def _size(incident: Incident, conclusions: Sequence[Conclusion]) -> str:
    """How large the job was: a number that was only inferred is a lower bound."""
    job = incident.job
    known = max((job.world_size or 0, *(r + 1 for c in conclusions for r in c.culprits)))
    if not known:
        return "a job of unknown size"
    least = "" if job.stated else "at least "
    return f"a job of {least}{known} rank{'s' if known > 1 else ''}"


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"


def timeline(incident: Incident) -> tuple[str, ...]:
    """Events in order of time where every one has a time, else of files and lines."""
    events = [h for h in incident.hits if h.kind != CONTEXT]
    first: dict[tuple[str, int | None], object] = {}
    kept = []
    for hit in events:
        key = (hit.code, hit.origin.rank)
        if key not in first:
            first[key] = hit
            kept.append(hit)
    if kept and all(h.origin.time is not None for h in kept):
        kept.sort(key=lambda h: (h.origin.time or 0.0, h.order))
    lines = []
    for hit in kept[:EVENTS]:
        who = f"rank {hit.origin.rank}" if hit.origin.rank is not None else hit.origin.host or "?"
        times = f" (x{hit.count})" if hit.count > 1 else ""
        lines.append(
            f"{clock(hit.origin.time) or f'{hit.origin.file}:{hit.origin.line}'}  {who}  {hit.code} {hit.kind}{times}: {hit.text.strip()[:160]}"
        )
    if len(kept) > EVENTS:
        lines.append(f"… and {len(kept) - EVENTS} more")
    return tuple(lines)


def notes(incident: Incident) -> tuple[str, ...]:
    """What was inferred, what could not be read, and whose clock was set right."""
    job, found = incident.job, []
    if job.world_size is not None:
        found.append(f"world size {job.world_size}" + ("" if job.stated else f" (inferred: {job.basis})"))
    found += [f"{i.name}: {i.problem}" for i in incident.inputs if i.problem][:PROBLEMS]
    shifts = list(incident.clock_offsets.items())[:SHIFTS]
    found += [f"{file}: its clock was shifted by {shift:+.1f} s" for file, shift in shifts]
    if job.restarts:
        found.append(f"{job.restarts} restart(s): attempts were judged separately, the last one first")
    if incident.truncated:
        found.append("not everything was read: give more --deadline, or fewer files")
    return tuple(found)
