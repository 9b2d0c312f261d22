"""What `fsdp-doctor run` costs a job: the processor time that it adds per step, and step times with and without it.

`python -m bench.run [--pairs N] [--steps N]`. Each pair starts the same job twice, once plainly and once under
`run`, in changing order; the job's ranks reduce and print in every step. What `run` adds is counted where it is
spent, which noise of the machine does not change: by its own process while the job ran, and by its thread in
each rank. The ratio of a pair is that of the medians of its steps, and what is printed is the median of the
ratios with its spread. Start and end are not counted; they are printed apart.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RANKS = 2
LIMIT = 0.01
ROOT = Path(__file__).parents[1]
JOB = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
optimizer = torch.optim.AdamW(model.parameters())
steps = int(sys.argv[1])
times = []
spent = time.process_time()
for step in range(steps):
    began = time.perf_counter()
    loss = model(torch.randn(64, 256)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    times.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    hooks = [time.clock_gettime(time.pthread_getcpuclockid(t.ident))
             for t in threading.enumerate() if t.name == "fsdp-doctor"]
    times = [(time.process_time() - spent) / steps, sum(hooks), *times[steps // 10:]]
    open(sys.argv[2], "w").write(repr(times))
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Job:
    """One job: seconds of its median step, processor seconds of rank 0 per step and of the thread in it, whole
    time, and `run`'s own.
    """

    step: float
    spent: float
    thread: float
    whole: float
    own: float


def job(folder: Path, steps: int, under: bool, number: int) -> Job:
    """Run one job, plainly or under `run`."""
    out = folder / f"times-{number}-{under}"
    script = folder / "job.py"
    script.write_text(JOB)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    words += [str(script), str(steps), str(out)]
    if under:
        run = folder / f"run-{number}"
        words = [sys.executable, "-m", "fsdp_doctor", "run", "--out", str(run), "--", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    subprocess.run(
        words, env=env, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    whole = time.monotonic() - began
    times = [float(t) for t in out.read_text().strip("[]").split(",")]
    own = _own_seconds(folder / f"run-{number}") if under else 0.0
    return Job(statistics.median(times[2:]), times[0], times[1], whole, own)


def _own_seconds(run: Path) -> float:
    """Processor seconds of `run` itself, as it noted them."""
    import json

    told = json.loads((run / "run.json").read_text()).get("own_cpu_seconds")
    return float(told) if isinstance(told, (int, float)) else float("nan")


def main() -> None:
    """Run the pairs and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=800)
    given = parser.parse_args()
    ratios, spent, plain, whole, own, added = [], [], [], [], [], []
    with tempfile.TemporaryDirectory(prefix="bench-run-") as name:
        for pair in range(given.pairs):
            found = {}
            for under in (pair % 2 == 0, pair % 2 == 1):
                found[under] = job(Path(name), given.steps, under, pair)
            with_run, without = found[True], found[False]
            ratios.append(with_run.step / without.step)
            spent.append(with_run.spent / without.spent)
            plain.append(without.step)
            whole.append(with_run.whole - without.whole)
            own.append(with_run.own / with_run.whole)
            added.append((with_run.own + RANKS * with_run.thread) / (RANKS * given.steps) / without.step)
            print(
                f"pair {pair}: {without.step * 1e3:.3f} ms plain, {with_run.step * 1e3:.3f} ms under run, ratio "
                f"{ratios[-1]:.4f}; of rank 0's processor time {spent[-1]:.4f}",
                flush=True,
            )
    for name, values in (("step time", ratios), ("processor time of rank 0", spent)):
        low, high = spread(values)
        print(
            f"{name}, under run / plain: {statistics.median(values):.4f} "
            f"(95 % of resampled medians {low:.4f}-{high:.4f})"
        )
    print(f"median step plain {statistics.median(plain) * 1e3:.3f} ms; two lines of output per step")
    print(f"processor time of run itself while the job ran: {statistics.median(own) * 100:.2f} % of one core")
    low, high = spread(added)
    print(
        f"processor time that run adds per rank and step, its process and its threads: "
        f"{statistics.median(added) * 100:.3f} % of a step ({low * 100:.3f}-{high * 100:.3f}): "
        f"{'below' if high < LIMIT else 'NOT below'} {LIMIT:.0%}"
    )
    print(f"start and end: {statistics.median(whole):.2f} s more")
    print(f"peak memory of a child: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10} MiB")


def spread(values: list[float]) -> tuple[float, float]:
    """The middle 95 % of medians of resampled values."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


if __name__ == "__main__":
    main()
