"""Replays of many jobs in one go: torch is imported once and each job runs in a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp_doctor.memory.events import EventList, read
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import START
from fsdp_doctor.memory.simulate import Run, simulate

FORKED = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
main = start.load("main").main
start.load("replay")
jobs, running = sys.argv[2:], {}
while jobs or running:
    while jobs and len(running) < 2:
        job = jobs.pop(0)
        pid = os.fork()
        if not pid:
            main(job)
            os._exit(1)
        running[pid] = job
    pid, _ = os.wait()
    del running[pid]
"""


def truth(name: str) -> list[tuple[dict[str, object], dict[str, object]]]:
    """Cases of fixtures/memory_truth and what a GPU measured for them."""
    folder = Path(__file__).parents[2] / "fixtures" / "memory_truth" / name
    measured = {t["id"]: t for t in json.loads((folder / "truth.json").read_text())}
    return [
        (c, measured[c["id"]]) for c in json.loads((folder / "cases.json").read_text()) if c["id"] in measured
    ]


def job(name: str, case: dict[str, object]) -> Job:
    """A case as the command line would have it."""
    models = (
        Path(__file__).parents[2] / "fixtures" / "memory_truth" / str(case.get("set", name)) / "models.py"
    )
    same = ("api", "strategy", "shard_size", "param_dtype", "reduce_dtype", "dtype", "autocast", "optimizer")
    given = {k: case[k] for k in (*same, "no_sync", "clip", "offload") if case.get(k) is not None}
    return Job(
        model=f"{models}:{case['model']}",
        batch=f"{models}:{case['model']}_batch",
        world_size=case["world"],  # type: ignore[arg-type]
        model_args=case.get("model_kw", {}),  # type: ignore[arg-type]
        batch_args=case.get("batch_kw", {}),  # type: ignore[arg-type]
        wrap=tuple(case.get("wrap") or ()),  # type: ignore[arg-type]
        checkpoint=tuple(case.get("checkpoint") or ()),  # type: ignore[arg-type]
        accumulate=case.get("accumulate", 1),  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )


def replayed(jobs: Sequence[Job], folder: Path, seconds: float) -> list[EventList | str]:
    """Each job's events, or why it was refused."""
    paths: list[str] = []
    for i, j in enumerate(jobs):
        place = folder / str(i)
        place.mkdir()
        gpu = {"sm": 90, "processors": 132}
        (place / "job.json").write_text(json.dumps({**j.to_json(), "gpu": gpu}))
        paths.append(str(place / "job.json"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", "-c", FORKED, str(START), *paths]
    subprocess.run(command, env=environment, timeout=seconds, check=True, capture_output=True)
    found: list[EventList | str] = []
    for i in range(len(jobs)):
        result = json.loads((folder / str(i) / "result.json").read_text())
        refused = result.get("refused")
        found.append(refused["text"] if refused else read(folder / str(i) / "events.bin", result))
    return found


def runs(jobs: Sequence[Job], folder: Path, seconds: float) -> list[Run | str]:
    """Each job's simulated run, or why it was refused."""
    return [f if isinstance(f, str) else simulate(f) for f in replayed(jobs, folder, seconds)]
