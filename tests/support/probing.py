"""Real probes with a fault on one rank, for tests and the bench."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fsdp_doctor.probe.launch import WORKER, Request, self_launch
from fsdp_doctor.probe.tournament import KIB, MIB, sizes
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult

SABOTAGE = Path(__file__).with_name("sabotage.py")
PACED = Path(__file__).parents[1] / "integration" / "paced.c"
PERIOD = 0.02


def plan(ranks: int, **changes: object) -> ProbePlan:
    """A plan of a few seconds for gloo."""
    made: dict[str, object] = {
        "backend": "gloo",
        "sizes": sizes(ranks, (64 * KIB, 2 * MIB)),
        "pair_bytes": (4 * MIB,),
        "pair_repeats": 3,
        "warmup": 2,
        "iterations_small": 12,
        "size_seconds": 0.6,
        "work_repeats": 12,
        "dtype": "float32",
        "deadline_seconds": 60.0,
        "timeout_seconds": 6.0,
    }
    return ProbePlan(**{**made, **changes})  # type: ignore[arg-type]


def probe(
    ranks: int, sabotage: str | None = None, environment: dict[str, str] | None = None, **changes: object
) -> ProbeResult:
    """Run a probe; `sabotage` as `tests.support.sabotage` takes it."""
    variables = {**os.environ, **(environment or {}), **({"SABOTAGE": sabotage} if sabotage else {})}
    request = Request(
        plan(ranks, **changes), ranks, environment=variables, script=SABOTAGE if sabotage else WORKER
    )
    return self_launch(request)


def paced_library(folder: Path) -> Path | None:
    """A library to preload that slows the sends of a process down; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = folder / "paced.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(PACED), "-ldl"], check=True, timeout=60
    )
    return target


@contextlib.contextmanager
def starved(rank: int, share: float = 0.75) -> Iterator[None]:
    """Take this share of the time from the process of a rank that is started meanwhile, by SIGSTOP."""
    ended = threading.Event()
    thread = threading.Thread(target=_starve, args=(rank, share, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _starve(rank: int, share: float, ended: threading.Event) -> None:
    while not ended.wait(0.05):
        pid = _process_of(rank)
        if pid is None:
            continue
        with contextlib.suppress(OSError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(PERIOD * share)
                os.kill(pid, signal.SIGCONT)
                time.sleep(PERIOD * (1 - share))


def _process_of(rank: int) -> int | None:
    """The process of a rank of a probe that this process started; None before it connects."""
    for pid, words, variables in _processes():
        journal = Path(words[-2]).parent / f"rank-{rank}.jsonl"
        with contextlib.suppress(OSError):
            if f"RANK={rank}" in variables and '"stage":"connect"' in journal.read_text():
                return pid
    return None


def _processes() -> Iterator[tuple[int, list[str], list[str]]]:
    """Agents and ranks of the probes that this process started: number, command, environment."""
    mark = f"PROBING={os.getpid()}"
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            variables = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if len(words) > 2 and "fsdp-doctor-probe-" in words[-2] and mark in variables:
            yield int(pid), words, variables


def processes_of_probes() -> list[str]:
    """Commands of ranks and agents that this process's probes left running."""
    return [" ".join(words) for _, words, _ in _processes()]
