"""From what single sources gave to one incident: lines get their ranks, clocks are put right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis import clocks, markers, oom
from fsdp_doctor.diagnosis.adding import with_call_sites, with_devices
from fsdp_doctor.diagnosis.exits import exits
from fsdp_doctor.diagnosis.job_shape import MAX_RANK, job_shape
from fsdp_doctor.diagnosis.phase_times import kernel_seconds
from fsdp_doctor.diagnosis.progress import thin
from fsdp_doctor.diagnosis.records import Found, Key, SourceScan
from fsdp_doctor.diagnosis.who import Who, who_is_who
from fsdp_doctor.subjects.incident import (
    Hit,
    Incident,
    Input,
    LastLine,
    Origin,
    RecorderConclusion,
    StepPoint,
    ThreadStack,
)


def assemble(
    scans: Sequence[SourceScan],
    inputs: Iterable[Input] = (),
    recorder: Iterable[RecorderConclusion] = (),
    truncated: bool = False,
) -> Incident:
    """One incident of all sources."""
    for scan in scans:
        _part_attempts(scan)
    who = who_is_who(scans)
    found = [(s, f) for s in scans for f in s.found]
    hits = _hits(found, who)
    ended = exits(scans, who)
    job = job_shape(scans, hits, ended, who)
    steps = _steps(scans, who)
    hits = with_devices(with_call_sites(hits, scans, who), scans)
    shifts = clocks.offsets(_simultaneous(hits))
    if shifts:
        hits = [replace(h, origin=_shifted(h.origin, shifts)) for h in hits]
    return Incident(
        inputs=(*(Input(s.name, _kind(s), s.bytes, s.lines, s.problem) for s in scans), *inputs),
        hits=tuple(hits),
        exits=tuple(ended),
        accounts=tuple(a for s in scans for a in s.accounts),
        ras=tuple(r for s in scans for r in s.ras),
        job=job,
        steps=tuple(steps),
        nccl_seconds=_nccl_seconds(scans, who),
        last_lines=tuple(_last_lines(scans, who)),
        stacks=tuple(_stacks(scans, who)),
        recorder=tuple(recorder),
        ooms=oom.reports(hits),
        done=tuple(sorted(_done(scans, who))),
        clock_offsets=shifts,
        truncated=truncated,
    )


def _kind(scan: SourceScan) -> str:
    return "accounting" if scan.kind == "log" and scan.accounts and not scan.found else scan.kind


def _part_attempts(scan: SourceScan) -> None:
    """Tell attempts apart in a log whose launcher does not say that it restarts: a second report of a failed
    process by the same agent is of another attempt than the first.
    """
    if scan.attempts or scan.path_attempt:
        return
    reports: dict[int | None, list[int]] = {}
    for entry in scan.found:
        if entry.hit.code == "LOG201":
            reports.setdefault(entry.hit.origin.pid, []).append(entry.hit.origin.line)
    ends = max(reports.values(), key=len, default=[])[:-1]
    if not ends:
        return

    def moved(origin: Origin) -> Origin:
        return replace(origin, attempt=origin.attempt + sum(end < origin.line for end in ends))

    for entry in scan.found:
        entry.hit = replace(entry.hit, origin=moved(entry.hit.origin))
    for mark in scan.marked:
        mark.origin = moved(mark.origin)
    scan.exits = [replace(e, origin=moved(e.origin)) for e in scan.exits]
    scan.attempts = len(ends)


def _shifted(origin: Origin, shifts: Mapping[str, float]) -> Origin:
    shift = shifts.get(origin.file)
    return origin if shift is None or origin.time is None else replace(origin, time=origin.time + shift)


def _simultaneous(hits: Iterable[Hit]) -> Iterable[tuple[str, tuple[str, int], float]]:
    for hit in hits:
        if (
            hit.code == "LOG101"
            and hit.origin.time is not None
            and "ran" in hit.fields
            and "seq" in hit.fields
        ):
            group = hit.fields.get("pg", "") + hit.fields.get("op", "")
            yield (
                hit.origin.file,
                (group, int(hit.fields["seq"])),
                hit.origin.time - int(hit.fields["ran"]) / 1000,
            )


# parts


def _hits(found: Sequence[tuple[SourceScan, Found]], who: Who) -> list[Hit]:
    hits: list[Hit] = []
    for order, (scan, entry) in enumerate(found):
        hit = entry.hit
        said = hit.fields.get("said_rank")
        if (
            said is not None
            and hit.fields.get("pg") not in (None, "default_pg", "0", "")
            and hit.fields.get("pg_rank") == said
        ):
            said = None
        rank = who.rank(scan.name, entry.key, hit.origin.pid, said)
        if rank is not None and rank >= MAX_RANK:
            rank = None
        hits.append(replace(hit, origin=replace(hit.origin, rank=rank), count=entry.count, order=order))
    return hits


def _done(scans: Sequence[SourceScan], who: Who) -> set[int]:
    marks = ((s, m) for s in scans for m in s.marked if m.code == markers.DONE)
    return {r for s, m in marks if (r := who.rank(s.name, m.key, m.origin.pid)) is not None}


def _steps(scans: Sequence[SourceScan], who: Who) -> list[StepPoint]:
    merged: dict[int | None, list[StepPoint]] = {}
    for scan in scans:
        for key, points in scan.steps.items():
            rank = who.rank(scan.name, key)
            own = merged.setdefault(rank, [])
            own += [replace(p, rank=rank) for p in points]
    for points in merged.values():
        thin(points)
    return [p for points in merged.values() for p in points]


def _nccl_seconds(scans: Sequence[SourceScan], who: Who) -> dict[int, float]:
    """Rank -> how long its NCCL kernels ran, by the rows of torch's profiler."""
    found: dict[int, float] = {}
    for scan in scans:
        for mark in scan.marked:
            if mark.code == markers.PROFILED and (rank := who.rank(scan.name, mark.key)) is not None:
                found[rank] = found.get(rank, 0.0) + kernel_seconds(mark.text)
    return found


def _last_lines(scans: Sequence[SourceScan], who: Who) -> list[LastLine]:
    last: dict[int, LastLine] = {}
    for scan in scans:
        for key, seen in scan.seen.items():
            rank = who.rank(scan.name, key)
            if rank is None or rank >= MAX_RANK:
                continue
            old = last.get(rank)
            count = seen.lines + (old.seen if old else 0)
            newer = old is None or old.origin.file == scan.name or _later(seen.origin, old.origin)
            text, origin = (seen.text, seen.origin) if newer or old is None else (old.text, old.origin)
            own = seen.own if newer or old is None else old.own
            last[rank] = LastLine(
                rank, text, replace(origin, rank=rank), count, own or (old.own if old else "")
            )
    return [last[r] for r in sorted(last)]


def _later(new: Origin, old: Origin) -> bool:
    if new.time is not None and old.time is not None:
        return new.time >= old.time
    return new.stream != "stderr"


def _stacks(scans: Sequence[SourceScan], who: Who) -> list[ThreadStack]:
    found = []
    for scan in scans:
        for key, stack in _with_main(scan.stacks):
            rank = who.rank(scan.name, key, stack.pid)
            if rank is None and (said := re.search(r"(?:local[-_]rank|RANK|rank)[= ](\d+)", stack.command)):
                rank = int(said[1])
            found.append(replace(stack, rank=rank, origin=replace(stack.origin, rank=rank)))
    return found


def _with_main(stacks: Sequence[tuple[Key, ThreadStack]]) -> Iterable[tuple[Key, ThreadStack]]:
    """Mark the main thread where faulthandler does not: it prints the oldest thread last."""
    last = {key: i for i, (key, _) in enumerate(stacks)}
    told = {key for key, stack in stacks if stack.main}
    for i, (key, stack) in enumerate(stacks):
        yield key, replace(stack, main=True) if key not in told and last[key] == i else stack
