"""From paths to an incident: everything is read once, big files in parts on several processors."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from fsdp_doctor.diagnosis import memory_snapshots
from fsdp_doctor.diagnosis.assemble import assemble
from fsdp_doctor.diagnosis.flight.names import looks_like_dump
from fsdp_doctor.diagnosis.matcher import matcher
from fsdp_doctor.diagnosis.memory_snapshots import looks_like_snapshot
from fsdp_doctor.diagnosis.readers.inputs import STDIN, Given, expand, hints
from fsdp_doctor.diagnosis.readers.streams import (
    CHUNK,
    HEAD,
    LATE,
    Stream,
    Unreadable,
    encoding_of,
    open_file,
    streams,
)
from fsdp_doctor.diagnosis.records import SourceScan
from fsdp_doctor.diagnosis.scan import Scanner
from fsdp_doctor.subjects.incident import Incident, Input, RecorderConclusion

PARALLEL_FROM = 64 << 20
"""Bytes of plain files from which a second process is worth its start."""
PART = 128 << 20
MAX_WORKERS = 8
Progress = Callable[[str], None]


@dataclass(slots=True)
class Read:
    """What was read of all paths."""

    scans: list[SourceScan] = field(default_factory=list)
    unread: list[Input] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    """Files that look like dumps of the Flight Recorder."""
    snapshots: list[str] = field(default_factory=list)
    """Files that look like snapshots of CUDA memory."""
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
        _large(large, result, until, plain, workers or _processors(), progress)
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
    snapshots, inputs = memory_snapshots.read(found.snapshots, until)
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
    from fsdp_doctor.diagnosis.readers.streams import _packed

    if looks_like_snapshot(head) or looks_like_dump(given.path, head):
        return False
    return not _packed(head) and encoding_of(head) == "utf-8"


def _year(path: str) -> int:
    try:
        return datetime.fromtimestamp(os.stat(path).st_mtime, timezone.utc).year
    except (OSError, ValueError, OverflowError):
        return datetime.now(timezone.utc).year


# small files, pipes, archives


def _small(given: Given, result: Read, until: float | None, plain: bool) -> None:
    year = _year(given.path)
    try:
        for stream in streams(given.path, until):
            if looks_like_snapshot(stream.head):
                _snapshot(given, stream, result)
                continue
            if looks_like_dump(stream.name, stream.head) and stream.path not in (None, STDIN):
                result.dumps.append(given.path)
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


def _snapshot(given: Given, stream: Stream, result: Read) -> None:
    # The child reads a file, packed by gzip or not.
    if given.path == STDIN or stream.name not in (given.path, given.path.removesuffix(".gz")):
        problem = "is a snapshot of CUDA memory in an archive or a pipe: give it as a file"
        result.unread.append(Input(stream.name, "unread", problem=problem))
    elif given.path not in result.snapshots:
        result.snapshots.append(given.path)


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


# large files


def _parts(given: Given, workers: int) -> list[tuple[int, int]]:
    size = min(PART, max(given.size // workers + 1, PARALLEL_FROM // 2))
    return [(a, min(a + size, given.size)) for a in range(0, given.size, size)]


def _large(
    files: Sequence[Given],
    result: Read,
    until: float | None,
    plain: bool,
    workers: int,
    progress: Progress | None,
) -> None:
    jobs = [(g, part) for g in files for part in _parts(g, workers)]
    scans: dict[str, list[SourceScan]] = {g.path: [] for g in files}
    if workers < 2 or len(jobs) < 2:
        for given, (low, high) in jobs:
            scans[given.path].append(_part(given.path, low, high, _year(given.path), until, plain))
    else:
        # A fork of a process with threads may inherit a lock that nobody will ever release.
        alone = threading.active_count() == 1 and sys.platform == "linux"
        context = multiprocessing.get_context("fork" if alone else "spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures: list[tuple[Given, Future[SourceScan]]] = [
                (g, pool.submit(_part, g.path, low, high, _year(g.path), until, plain))
                for g, (low, high) in jobs
            ]
            for number, (given, future) in enumerate(futures):
                if progress is not None:
                    progress(f"{given.path}, part {number + 1} of {len(futures)}")
                scans[given.path].append(future.result())
    for given in files:
        whole, *rest = scans[given.path]
        for later in rest:
            whole.join(later)
        result.truncated = result.truncated or "deadline" in whole.problem
        result.scans.append(whole)


def _part(path: str, low: int, high: int, year: int, until: float | None, plain: bool) -> SourceScan:
    """Scan the lines of a file that begin in [low, high)."""
    scan = hints(path)
    scanner = Scanner(scan, matcher(plain), year)
    try:
        with open_file(path) as file:
            if low > 0:
                file.seek(low - 1)
                low = _next_line(file, low - 1)
            file.seek(low)
            at = low
            while at < high:
                data = file.read(min(CHUNK * 4, high - at))
                if not data:
                    break
                at += len(data)
                if at >= high:
                    data += _rest_of_line(file, data)
                scanner.feed(data)
                if until is not None and time.monotonic() > until:
                    scan.problem = LATE
                    break
    except (Unreadable, OSError) as error:
        scan.problem = str(error)
    return scanner.finish()


LONG = 16 << 20


def _next_line(file: object, at: int) -> int:
    """Where the first line behind `at` begins; a line longer than `LONG` is cut there."""
    end = at + LONG
    while at < end:
        data: bytes = file.read(64 << 10)  # type: ignore[attr-defined]
        if not data:
            return at
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    return at


def _rest_of_line(file: object, data: bytes) -> bytes:
    rest = b""
    while not data.endswith(b"\n") and b"\n" not in rest and len(rest) < LONG:
        more: bytes = file.read(64 << 10)  # type: ignore[attr-defined]
        if not more:
            break
        rest += more
    return rest[: rest.find(b"\n") + 1] if b"\n" in rest else rest
