"""Two looks at the ranks of a job, a moment apart: where each stands, whether it moves, what its GPU does."""

from __future__ import annotations

import linecache
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fsdp_doctor.diagnosis.live import faulthandler_stacks, pyspy
from fsdp_doctor.diagnosis.live.find import Seen, as_process, job_name, number
from fsdp_doctor.diagnosis.live.grouping import groups
from fsdp_doctor.diagnosis.live.place import place
from fsdp_doctor.diagnosis.live.verdict import conclude
from fsdp_doctor.subjects.stacks import (
    CODE,
    DATA,
    FAULTHANDLER,
    GPU,
    LOCK,
    PY_SPY,
    GpuLoad,
    LiveJob,
    Place,
    RankProcess,
    Thread,
)

PAUSE = 1.0
"""Seconds between the two looks."""
AT_ONCE = 8
"""Processes that are read at the same time."""
HELPERS = 8
"""Loader workers of one rank that are looked at."""
LINE_LIMIT = 160
WAITS_FOR_GPU = re.compile(r"\.(?:item|tolist|cpu|numpy|synchronize|wait_stream|nonzero)\(")
"""Calls into C that return when the GPU has come to them."""
SPINNING = 0.9
"""Share of a processor: CUDA spins while it waits, by its default."""
BUSY_PERCENT = 90

Loads = Callable[[Mapping[int, int]], tuple[GpuLoad, ...]]


def look(
    seen: Sequence[Seen],
    *,
    table: Mapping[int, Seen],
    pause: float = PAUSE,
    loads: Loads | None = None,
    other_jobs: Sequence[str] = (),
) -> LiveJob:
    """Look at the processes of one job twice. Costs them nothing: they are read while they run.

    `loads` answers what the GPUs of these ranks do: process id -> rank goes in.
    """
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        first = list(pool.map(_look_once, seen))
        time.sleep(pause)
        second = list(pool.map(_look_once, seen))
        processes = tuple(_joined(a, b) for a, b in zip(first, second, strict=True))
        processes = tuple(pool.map(lambda p: _with_helpers(p, table), processes))
    ranks = {p.pid: p.rank if p.rank is not None else i for i, p in enumerate(processes)}
    gpus = loads(ranks) if loads is not None else ()
    processes = tuple(waiting_for_gpu(p, ranks[p.pid], gpus, pause) for p in processes)
    job = LiveJob(
        host=socket.gethostname(),
        job=job_name(seen[0]) if seen else "",
        processes=processes,
        groups=groups(processes),
        gpus=gpus,
        seconds=time.monotonic() - began,
        other_jobs=tuple(other_jobs),
        local_world_size=max((n for s in seen if (n := local_count(s)) is not None), default=None),
    )
    return replace(job, conclusions=conclude(job))


def local_count(seen: Seen) -> int | None:
    """Ranks that its launcher started on this host."""
    return number(seen.environment, ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"))


def _look_once(seen: Seen) -> RankProcess:
    known = as_process(seen)
    state = _state(seen.pid)
    if state in (None, "Z"):
        return replace(known, state=state, problem="the process has ended")
    threads, method, problem, remedy = _threads(seen)
    return replace(
        known,
        state=state,
        wait_channel=_wait_channel(seen.pid) if state == "D" else None,
        threads=threads,
        method=method,
        problem=problem,
        remedy=remedy,
        cpu_seconds=_cpu(seen.pid),
    )


def _threads(seen: Seen) -> tuple[tuple[Thread, ...], str | None, str | None, str | None]:
    dump = pyspy.dump(seen.pid)
    if dump.threads:
        return dump.threads, PY_SPY, None, None
    run = seen.environment.get(faulthandler_stacks.RUN)
    threads = faulthandler_stacks.ask(seen.pid, Path(run)) if run else ()
    if threads:
        return threads, FAULTHANDLER, None, None
    return (), None, dump.problem, dump.remedy


def _joined(first: RankProcess, second: RankProcess) -> RankProcess:
    """The later look, with what changed since the first."""
    later = second if second.threads or not first.threads else replace(first, state=second.state)
    before, after = place(first.threads), place(later.threads)
    moving = bool(first.threads and second.threads) and _spots(first.threads) != _spots(second.threads)
    used = None
    if first.cpu_seconds is not None and second.cpu_seconds is not None:
        used = max(second.cpu_seconds - first.cpu_seconds, 0.0)
    found = after if after.kind != "unseen" else before
    return replace(later, place=_with_text(found), moving=moving, cpu_seconds=used)


def _spots(threads: Sequence[Thread]) -> tuple[object, ...]:
    """The main thread's stack without line numbers inside libraries, which flicker in waiting loops."""
    main = next((t for t in threads if t.main), threads[0])
    return tuple((f.function, f.file, f.line) for f in main.frames)


def waiting_for_gpu(process: RankProcess, rank: int, gpus: Sequence[GpuLoad], pause: float) -> RankProcess:
    """A rank in its own code that really waits for its GPU: `.item()` shows no frame of its own.

    It is known by the source line, or by a processor that spins at one line while the GPU is busy.
    """
    found = process.place
    if found is None or found.kind != CODE or process.moving or found.user is None:
        return process
    spins = (process.cpu_seconds or 0.0) > SPINNING * pause
    busy = any(rank in g.ranks and (g.utilisation or 0) >= BUSY_PERCENT for g in gpus)
    if WAITS_FOR_GPU.search(found.text) or (busy and spins):
        return replace(process, place=replace(found, kind=GPU))
    return process


def _with_text(found: Place) -> Place:
    user = found.user
    if user is None or user.line is None or not os.path.isfile(user.file):
        return found
    return replace(found, text=linecache.getline(user.file, user.line).strip()[:LINE_LIMIT])


def _with_helpers(process: RankProcess, table: Mapping[int, Seen]) -> RankProcess:
    """Where a rank's loader workers stand, if it is one of them that it waits for."""
    if process.place is None or process.place.kind not in (DATA, LOCK):
        return process
    children = [s for s in table.values() if s.parent == process.pid and s.state != "Z"]
    found = []
    for child in children[:HELPERS]:
        dump = pyspy.dump(child.pid)
        if dump.threads and not _is_tracker(child):
            found.append((child.pid, _with_text(place(dump.threads))))
    return replace(process, helpers=tuple(found))


def _is_tracker(seen: Seen) -> bool:
    return any("resource_tracker" in w for w in seen.command)


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return None


def _wait_channel(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/wchan").read_text().strip() or None
    except OSError:
        return None


def _cpu(pid: int) -> float | None:
    """Processor seconds that a process has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
