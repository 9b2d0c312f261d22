"""Replays of many jobs in one child: torch is imported once, cores work side by side, and time is bounded."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.memory import leftovers
from fsdp_doctor.memory.events import BrokenEvents, read
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import START, Replay, ReplayError, _died, _environment, _refused, _result

REPLAY_BYTES = 700 << 20
"""Host memory that one replay may take, for how many run side by side."""
START_UP = 1.0
"""Seconds that are kept for ending what still runs."""
LOOK = 0.1
"""Seconds between two looks at what is done."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and for what replays run."""

    python: str = sys.executable
    gpu: Mapping[str, object] | None = None
    """`sm` and `processors` of the GPU that kernels are chosen for."""
    more: Mapping[str, object] | None = None
    """Further fields for each job, such as a calibration."""
    until: float | None = None
    """time.monotonic() at which no more answers are wanted."""
    shown: Callable[[int, int], None] | None = None
    """Is told how many of the replays that run now are done, and how many they are."""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return 3600.0 if self.until is None else self.until - time.monotonic()


def workers() -> int:
    """Replays that this machine runs side by side, by its cores and its free memory."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return max(1, min(cores, 16, _free_memory() // REPLAY_BYTES))


def _free_memory() -> int:
    try:
        import psutil
    except ImportError:
        return 4 << 30
    return int(psutil.virtual_memory().available)


def replays(
    jobs: Sequence[Job | Mapping[str, object]], machine: Machine
) -> Iterator[Replay | ReplayError | None]:
    """One answer per job, in their order; None for those that time did not suffice for.

    A mapping is a job with a `work` of its own, as the child takes it.
    """
    if not jobs:
        return
    seconds = machine.left - START_UP
    if seconds <= 0:
        yield from (None for _ in jobs)
        return
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-memory-"))
    try:
        paths = [_written(job, folder / str(i), machine) for i, job in enumerate(jobs)]
        listed = {"jobs": [str(p) for p in paths], "workers": workers(), "seconds": seconds}
        (folder / "list.json").write_text(json.dumps(listed))
        command = [machine.python, "-B", str(START), str(folder / "list.json"), "many"]
        environment = leftovers.marked(_environment(), folder)
        with process.start(command, env=environment, stdout_limit=64 << 10) as child:
            _attend(child, paths, machine, time.monotonic() + seconds)
            outcome = child.result(seconds + START_UP / 2)
        leftovers.end(folder)
        for path in paths:
            yield _answer(path.parent, outcome, machine, seconds)
            shutil.rmtree(path.parent, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _attend(child: process.Child, paths: Sequence[Path], machine: Machine, until: float) -> None:
    """Tell of what is done while the child runs, should anybody want to hear it."""
    while machine.shown is not None and child.running and time.monotonic() < until:
        machine.shown(sum((p.parent / "result.json").exists() for p in paths), len(paths))
        time.sleep(LOOK)


def _written(job: Job | Mapping[str, object], folder: Path, machine: Machine) -> Path:
    folder.mkdir()
    gpu = dict(machine.gpu or {})
    if isinstance(job, Job):
        described: dict[str, object] = {**job.to_json(), **(machine.more or {})}
    else:
        described = dict(job)
    path = folder / "job.json"
    path.write_text(json.dumps({**described, "gpu": gpu, "plan_path": str(folder / "plan.json")}))
    return path


def _answer(
    folder: Path, outcome: process.Outcome, machine: Machine, seconds: float
) -> Replay | ReplayError | None:
    result = _result(folder / "result.json")
    if result is None:
        if outcome.timed_out or _timed_out(folder) or (outcome.ok and not (folder / "stage").exists()):
            return None
        return _died(outcome, folder, machine.python, seconds)
    refused = result.get("refused")
    if isinstance(refused, Mapping):
        return _refused(refused)
    try:
        return Replay(read(folder / "events.bin", result), result)
    except (OSError, BrokenEvents) as error:
        return ReplayError("child", f"the replay's events cannot be read: {error}")


def _timed_out(folder: Path) -> bool:
    try:
        return "Timeout" in (folder / "stack").read_text(errors="replace")[:200]
    except OSError:
        return False
