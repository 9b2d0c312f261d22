"""From paths to an incident: everything is read once, big files in parts on several processors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fsdp_doctor.diagnosis import memory_snapshots
from fsdp_doctor.diagnosis.assemble import assemble
from fsdp_doctor.diagnosis.flight.names import looks_like_dump
from fsdp_doctor.diagnosis.matcher import matcher
from fsdp_doctor.diagnosis.memory_snapshots import looks_like_snapshot
from fsdp_doctor.diagnosis.parts import PARALLEL_FROM, Progress, in_parts, year_of
from fsdp_doctor.diagnosis.readers.encodings import encoding_of
from fsdp_doctor.diagnosis.readers.inputs import STDIN, Given, expand, hints
from fsdp_doctor.diagnosis.readers.sources import HEAD, LATE, Unreadable, open_file, packing
from fsdp_doctor.diagnosis.readers.spool import Spool
from fsdp_doctor.diagnosis.readers.streams import Stream, streams
from fsdp_doctor.diagnosis.records import SourceScan
from fsdp_doctor.diagnosis.scan import Scanner
from fsdp_doctor.subjects.incident import Incident, Input, RecorderConclusion

MAX_WORKERS = 8


@dataclass(slots=True)
class Read:
    """What was read of all paths."""

    scans: list[SourceScan] = field(default_factory=list)
    unread: list[Input] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    """Files that look like dumps of the Flight Recorder."""
    snapshots: list[str] = field(default_factory=list)
    """Files that look like snapshots of CUDA memory."""
    spool: Spool = field(default_factory=Spool)
    """Where those of them lie that came in an archive or through a pipe."""
    truncated: bool = False


def read(
    paths: Sequence[str],
    *,
    until: float | None = None,
    plain: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Read:
    """Read everything. `until` is in seconds of `time.monotonic`; what is not read by then is left out."""
    result = Read()
    large: list[Given] = []
    small: list[Given] = []
    for given in expand(paths):
        if given.problem:
            result.unread.append(Input(given.path, "unread", problem=given.problem))
        elif given.path != STDIN and given.size >= PARALLEL_FROM and _is_plain(given):
            large.append(given)
        else:
            small.append(given)
    order = {g.path: i for i, g in enumerate((*small, *large))}
    if large:
        result.scans += in_parts(large, until, plain, workers or _processors(), progress)
        result.truncated = any("deadline" in s.problem for s in result.scans)
    for given in small:
        if until is not None and time.monotonic() > until:
            result.truncated = True
            result.unread.append(Input(given.path, "unread", problem="the deadline came before it was read"))
            continue
        if progress is not None:
            progress(given.path)
        _small(given, result, until, plain)
    result.scans.sort(key=lambda s: order.get(s.name.partition(":")[0], order.get(s.name, 0)))
    return result


def incident(
    found: Read, recorder: Iterable[RecorderConclusion] = (), until: float | None = None
) -> Incident:
    """The incident of what was read, with what the recorder's dumps and snapshots of memory say."""
    logs = assemble(found.scans, found.unread, recorder, found.truncated)
    if not found.snapshots:
        return logs
    snapshots, inputs = memory_snapshots.read(found.snapshots, until, found.spool.names)
    return replace(logs, snapshots=snapshots, inputs=(*logs.inputs, *inputs))


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity else os.cpu_count() or 1, MAX_WORKERS)


def _is_plain(given: Given) -> bool:
    """Whether a file is text as it lies there; a dump or an archive is not."""
    try:
        with open_file(given.path) as file:
            head = file.read(HEAD) or b""
    except (Unreadable, OSError):
        return False
    if looks_like_snapshot(head) or looks_like_dump(given.path, head):
        return False
    return not packing(head) and encoding_of(head) == "utf-8"


def _small(given: Given, result: Read, until: float | None, plain: bool) -> None:
    year = year_of(given.path)
    try:
        for stream in streams(given.path, until):
            if looks_like_snapshot(stream.head):
                _lay_out(given, stream, result, result.snapshots, until)
                continue
            if looks_like_dump(stream.name, stream.head):
                _lay_out(given, stream, result, result.dumps, until)
                continue
            if stream.kind != "text":
                result.unread.append(
                    Input(stream.name, "unread", problem=stream.reason)
                ) if given.named or stream.reason != "is no text" else None
                continue
            result.scans.append(_scan(stream, year, until, plain, result))
    except Unreadable as error:
        result.unread.append(Input(given.path, "unread", problem=str(error)))
        result.truncated = result.truncated or str(error) == LATE


def _lay_out(given: Given, stream: Stream, result: Read, files: list[str], until: float | None) -> None:
    """Note a file for the children that read dumps and snapshots; what is no file by itself becomes one."""
    if stream.path is not None and given.path != STDIN:
        files.append(given.path)
        return
    try:
        files.append(result.spool.keep(stream, until))
    except Unreadable as error:
        result.unread.append(Input(stream.name, "unread", problem=str(error)))
        result.truncated = result.truncated or str(error) == LATE


def _scan(stream: Stream, year: int, until: float | None, plain: bool, result: Read) -> SourceScan:
    scan = hints("stdin" if stream.name == STDIN else stream.name)
    scanner = Scanner(scan, matcher(plain), year)
    try:
        for chunk in stream.chunks:
            scanner.feed(chunk)
            if until is not None and time.monotonic() > until:
                scan.problem = LATE
                result.truncated = True
                break
    except Unreadable as error:
        scan.problem = str(error)
        result.truncated = result.truncated or scan.problem == LATE
    return scanner.finish()
