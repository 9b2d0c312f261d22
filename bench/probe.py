"""Figures of `fsdp-doctor probe` on CPU ranks: against a plain torch loop, and how often it names the right rank.

`python -m bench.probe speed` compares medians, interleaved. `python -m bench.probe localise [--healthy N]
[--faults N]` runs probes with and without a fault and writes docs/probe-localisation.md. To save time its
ranks are forked from one process that has imported torch; what they run is the worker of the product.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor.probe.assemble import Ending, assemble
from fsdp_doctor.probe.codec import to_json
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.launch import PARENT, job
from fsdp_doctor.probe.planning import GLOO, Effort, plan
from fsdp_doctor.probe.tournament import MIB
from fsdp_doctor.probe.verdicts import conclude, recheck
from fsdp_doctor.subjects.fabric import COMPUTE, LATE, TRANSFER, Fabric
from fsdp_doctor.subjects.probe import ProbeResult
from tests.support import probing

ROOT = Path(__file__).parents[1]
RANKS = 4
LIMIT = 60.0
SIZE = 4 * MIB
ROUNDS = 9
PLAIN = """
import os, statistics, sys, time, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
n, size = dist.get_world_size(), int(sys.argv[1]) // 4
full, part = torch.ones(size), torch.ones(size // n)
steps = {
    "all_gather": lambda: dist.all_gather_into_tensor(full, part),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, full),
    "all_reduce": lambda: dist.all_reduce(full),
}
for name, step in steps.items():
    for _ in range(5):
        step()
    times = []
    for _ in range(60):
        dist.barrier()
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    worst = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(name, statistics.median(worst.tolist()), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def speed() -> None:
    """Medians of the probe and of a loop that anybody would write, in turns."""
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "plain.py"
        script.write_text(PLAIN)
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        for _ in range(ROUNDS):
            done = subprocess.run(
                [*run, str(script), str(SIZE)], capture_output=True, text=True, check=True, timeout=120
            )
            for line in done.stdout.splitlines():
                name, seconds = line.split()
                theirs.setdefault(name, []).append(float(seconds))
            for f in conclude(
                probing.probe(2, sizes=(SIZE,), pair_bytes=(), iterations_small=60, size_seconds=3.0)
            ).figures:
                ours.setdefault(f.op, []).append(f.median)
    for name, seconds in theirs.items():
        a, b = statistics.median(ours[name]), statistics.median(seconds)
        ratio = statistics.median(x / y for x, y in zip(ours[name], seconds, strict=True))
        print(
            f"{name} {SIZE >> 20} MiB, 2 gloo ranks: probe {a * 1e3:.2f} ms, plain loop {b * 1e3:.2f} ms, "
            f"median ratio of pairs {ratio:.2f} (bound 0.85 to 1.15); runs {[round(x / y, 2) for x, y in zip(ours[name], seconds, strict=True)]}"
        )


@dataclass(frozen=True)
class Fault:
    """What is done to one rank, and the kind of culprit that must name it."""

    name: str
    how: str
    kind: str
    inject: Callable[[], object]


def late() -> None:
    """Sleep 20 ms before each step."""
    journal = loaded("journal")
    entered = journal.Progress.enter  # type: ignore[attr-defined]

    def enter(progress: object) -> None:
        time.sleep(0.02)
        entered(progress)

    journal.Progress.enter = enter  # type: ignore[attr-defined]


def starve() -> None:
    """Lose 90 % of each 20 ms to a child that stops this process."""
    parent = os.getpid()
    if os.fork():
        return
    while os.getppid() == parent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGSTOP)
            time.sleep(0.018)
            os.kill(parent, signal.SIGCONT)
            time.sleep(0.002)
    os._exit(0)


def pace() -> None:
    """Send at 60 MB/s; the library is preloaded."""
    os.environ["PACE_MBPS"] = "60"


FAULTS = (
    Fault("late", "sleeps 20 ms before each collective", LATE, late),
    Fault("starved", "is stopped for 18 of every 20 ms", COMPUTE, starve),
    Fault("slow sender", "sends at 60 MB/s", TRANSFER, pace),
)


def loaded(name: str) -> object:
    """A module of the worker."""
    sys.path.insert(0, str(ROOT / "doctor" / "probe" / "worker"))
    from start import load  # type: ignore[import-not-found]

    return load(name)


def forked(fault: Fault | None, victim: int) -> ProbeResult:
    """One probe with forked ranks."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-bench-"))
    made = plan(GLOO, RANKS, Effort.SHORT)
    try:
        path = folder / "job.json"
        path.write_text(json.dumps(job(made, RANKS, folder)))
        port = 20000 + random.randrange(20000)
        pids = [_fork(r, path, port, fault if r == victim else None) for r in range(RANKS)]
        journals = [Journal(folder, r) for r in range(RANKS)]
        try:
            _attend(journals, made, folder, pids)
        finally:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
        return assemble(made, journals, [Ending(r) for r in range(RANKS)], device="cpu")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fork(rank: int, path: Path, port: int, fault: Fault | None) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(
        {PARENT: str(parent), "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        if fault is not None:
            fault.inject()
        loaded("main").main(str(path))  # type: ignore[attr-defined]
    finally:
        os._exit(1)


def _attend(journals: Sequence[Journal], made: object, folder: Path, pids: Sequence[int]) -> None:
    until, answered = time.monotonic() + LIMIT, False
    while time.monotonic() < until and not all(j.done or j.error for j in journals):
        for j in journals:
            j.poll()
        if not answered and all(j.looked for j in journals):
            answered = True
            first = assemble(made, journals, [Ending(r) for r in range(RANKS)], device="cpu")  # type: ignore[arg-type]
            part = folder / "again.part"
            part.write_text(json.dumps(to_json(recheck(first))))
            part.replace(folder / "again.json")
        time.sleep(0.02)


def named(found: Fabric, *, fails: bool) -> dict[int, set[str]]:
    """Rank -> the kinds of culprit that name it."""
    ranks: dict[int, set[str]] = {}
    for c in found.culprits:
        if c.fails or not fails:
            for r in c.ranks:
                ranks.setdefault(r, set()).add(c.kind)
    return ranks


def localise(healthy: int, faults: int) -> None:
    """Run them all in a shuffled order and write the table."""
    chosen: list[Fault | None] = [None] * healthy + [f for f in FAULTS for _ in range(faults)]
    random.shuffle(chosen)
    rows: dict[str, dict[str, int]] = {}
    began = time.monotonic()
    for number, fault in enumerate(chosen):
        victim = random.randrange(RANKS)
        found = conclude(forked(fault, victim))
        row = rows.setdefault(
            fault.name if fault else "healthy", {"runs": 0, "right": 0, "warned": 0, "failed": 0, "broken": 0}
        )
        row["runs"] += 1
        row["broken"] += bool(found.failures)
        who = named(found, fails=False)
        row["right"] += fault is not None and fault.kind in who.get(victim, ())
        others = {r for r in who if fault is None or r != victim}
        row["warned"] += bool(others)
        row["failed"] += bool({r for r in named(found, fails=True) if fault is None or r != victim})
        if others or found.failures or (fault and fault.kind not in who.get(victim, ())):
            print(
                f"{number}: {fault.name if fault else 'healthy'}, rank {victim}: {who} {found.failures}",
                flush=True,
            )
    text = document(rows, time.monotonic() - began)
    print(text)
    (ROOT / "docs" / "probe-localisation.md").write_text(text)


def document(rows: dict[str, dict[str, int]], seconds: float) -> str:
    """The table with what it was measured on."""
    import torch

    lines = [
        "# How often the probe names the right rank",
        "",
        f"Written by `python -m bench.probe localise`: {RANKS} gloo ranks forked from one process, quick profile, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores that other work shared, {seconds / 60:.0f} minutes. "
        "The order of the runs and the rank with the fault are random.",
        "",
        "| fault of one rank | runs | right rank, right kind | another rank warned of | another rank failed | did not run through |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    how = {f.name: f"{f.name}: {f.how}" for f in FAULTS}
    for name in ("healthy", *how):
        if name in rows:
            r = rows[name]
            right = "–" if name == "healthy" else str(r["right"])
            lines.append(
                f"| {how.get(name, 'none')} | {r['runs']} | {right} | {r['warned']} | {r['failed']} | {r['broken']} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("speed", "localise"))
    parser.add_argument("--healthy", type=int, default=50)
    parser.add_argument("--faults", type=int, default=20)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if chosen.part == "speed":
        speed()
        return
    if "PACED" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = probing.paced_library(Path(folder))
            variables = {**os.environ, "PACED": "1", **({"LD_PRELOAD": str(library)} if library else {})}
            command = [sys.executable, "-m", "bench.probe", *sys.argv[1:]]
            raise SystemExit(subprocess.run(command, env=variables, check=False).returncode)
    import torch.distributed  # noqa: F401 - once, for all ranks

    localise(chosen.healthy, chosen.faults)


if __name__ == "__main__":
    main()
