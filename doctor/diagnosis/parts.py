"""Big files of plain text, in parts on several processors; a part is the lines that begin in it."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import datetime, timezone

from fsdp_doctor.diagnosis.matcher import matcher
from fsdp_doctor.diagnosis.readers.inputs import Given, hints
from fsdp_doctor.diagnosis.readers.sources import CHUNK, LATE, Unreadable, open_file
from fsdp_doctor.diagnosis.records import SourceScan
from fsdp_doctor.diagnosis.scan import Scanner

PARALLEL_FROM = 64 << 20
"""Bytes of plain files from which a second process is worth its start."""
PART = 128 << 20
Progress = Callable[[str], None]


def year_of(path: str) -> int:
    """The year that a file was last written in, for times without one."""
    try:
        return datetime.fromtimestamp(os.stat(path).st_mtime, timezone.utc).year
    except (OSError, ValueError, OverflowError):
        return datetime.now(timezone.utc).year


def _parts(given: Given, workers: int) -> list[tuple[int, int]]:
    size = min(PART, max(given.size // workers + 1, PARALLEL_FROM // 2))
    return [(a, min(a + size, given.size)) for a in range(0, given.size, size)]


def in_parts(
    files: Sequence[Given],
    until: float | None,
    plain: bool,
    workers: int,
    progress: Progress | None,
) -> list[SourceScan]:
    """One scan for each file, in their order. `until` is in seconds of `time.monotonic`."""
    jobs = [(g, part) for g in files for part in _parts(g, workers)]
    scans: dict[str, list[SourceScan]] = {g.path: [] for g in files}
    if workers < 2 or len(jobs) < 2:
        for given, (low, high) in jobs:
            scans[given.path].append(_part(given.path, low, high, year_of(given.path), until, plain))
    else:
        # A fork of a process with threads may inherit a lock that nobody will ever release.
        alone = threading.active_count() == 1 and sys.platform == "linux"
        context = multiprocessing.get_context("fork" if alone else "spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures: list[tuple[Given, Future[SourceScan]]] = [
                (g, pool.submit(_part, g.path, low, high, year_of(g.path), until, plain))
                for g, (low, high) in jobs
            ]
            for number, (given, future) in enumerate(futures):
                if progress is not None:
                    progress(f"{given.path}, part {number + 1} of {len(futures)}")
                scans[given.path].append(future.result())
    found = []
    for given in files:
        whole, *rest = scans[given.path]
        for later in rest:
            whole.join(later)
        found.append(whole)
    return found


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
