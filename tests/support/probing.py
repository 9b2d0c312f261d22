"""Real probes with a fault on one rank, for tests and the bench."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fsdp_doctor.probe.launch import WORKER, Request, self_launch
from fsdp_doctor.probe.tournament import KIB, MIB, sizes
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult

SABOTAGE = Path(__file__).with_name("sabotage.py")
PACED = Path(__file__).parents[1] / "integration" / "paced.c"


def plan(ranks: int, **changes: object) -> ProbePlan:
    """A plan of a few seconds for gloo."""
    made: dict[str, object] = {
        "backend": "gloo",
        "sizes": sizes(ranks, (64 * KIB, 2 * MIB)),
        "pair_bytes": (4 * MIB,),
        "pair_repeats": 5,
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
