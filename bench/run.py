"""What `fsdp-doctor run` costs a job: its share of a step, with a confidence interval, and seconds at start and end.

    python -m bench.run [--pairs N] [--seconds S] [--width N]

Each pair starts the same job of two gloo ranks twice, once plainly and once under `run`, in changing order (A B, B A,
…). The job's work is fixed; its ranks reduce and print in every step. Three answers, from the most direct one:

- counted: processor seconds that `run` itself, its thread in each rank and torchrun's agent (which passes on the
  ranks' output for it) spend between the first and the last step, less what the agent spends without `run`; as a
  share of what the ranks spend. Other work of the machine hardly changes it.
- processor time of all processes of the job together, under `run` / plain.
- wall time of a step, under `run` / plain.

A ratio is that of the two jobs of one pair; printed is the geometric mean with the interval that holds it with 95 %
(Student's t of the logarithms). The status is 1 where `run` is shown to cost 1 % or more, 3 where the machine is too
noisy to tell by the counted share. Start and end are not counted; they are printed apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RANKS = 2
LIMIT = 0.01
ROOT = Path(__file__).parents[1]
HOOK = ROOT / "doctor" / "diagnosis" / "recording" / "hook"
STARTS = 20
STUDENT = {
    2: 12.71,
    3: 4.30,
    4: 3.18,
    5: 2.78,
    6: 2.57,
    7: 2.45,
    8: 2.36,
    9: 2.31,
    10: 2.26,
    12: 2.20,
    15: 2.14,
}
"""Two-sided 95 % of Student's t by the number of pairs; of others the next smaller one is taken."""
JOB = """
import json, os, sys, threading, time, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.set_num_threads(1)
width, steps, target = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(8))))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, width)

def spent(pid):
    # by the scheduler's own clock: the processor time of processes is counted in ticks of 10 ms
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9

def others():
    run = os.environ.get("FSDP_DOCTOR_PID")
    return spent(os.getppid()), spent(run) if run else 0.0

def step(number):
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {number} loss {loss.item():.6f}", flush=True)

for number in range(10):
    step(number)
dist.barrier()
agent, run = others()
own, began, times = time.process_time(), time.perf_counter(), []
for number in range(steps):
    at = time.perf_counter()
    step(number)
    times.append(time.perf_counter() - at)
dist.barrier()
wall = time.perf_counter() - began
ranks = torch.tensor([time.process_time() - own], dtype=torch.float64)
hook = sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident))
           for t in threading.enumerate() if t.name == "fsdp-doctor")
hooks = torch.tensor([hook], dtype=torch.float64)
dist.all_reduce(ranks)
dist.all_reduce(hooks)
if dist.get_rank() == 0:
    later = others()
    told = {"step": sorted(times)[steps // 2], "wall": wall, "ranks": ranks.item(), "hooks": hooks.item(),
            "agent": later[0] - agent, "run": later[1] - run}
    with open(target, "w") as file:
        json.dump(told, file)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Job:
    """One job: seconds of its median step; processor seconds between first and last step of its ranks, of the
    thread of `run` in them, of torchrun's agent and of `run`; wall seconds from start to end.
    """

    step: float
    ranks: float
    hooks: float
    agent: float
    run: float
    whole: float

    @property
    def spent(self) -> float:
        """Processor seconds of all processes."""
        return self.ranks + self.agent + self.run


def job(folder: Path, width: int, steps: int, under: bool, number: int) -> Job:
    """Run one job, plainly or under `run`."""
    out, script = folder / f"told-{number}-{under}", folder / "job.py"
    script.write_text(JOB)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    words += [str(script), str(width), str(steps), str(out)]
    if under:
        run = folder / f"run-{number}"
        words = [sys.executable, "-m", "fsdp_doctor", "run", "--out", str(run), "--", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    # Both write what they print to a pipe that is read, as a job's output usually is.
    subprocess.run(words, env=env, check=True, timeout=300, capture_output=True)
    whole = time.monotonic() - began
    told = json.loads(out.read_text())
    return Job(told["step"], told["ranks"], told["hooks"], told["agent"], told["run"], whole)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean and the 95 % interval of the mean."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    t = STUDENT[max(k for k in STUDENT if k <= len(logs))]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and the 95 % interval of the mean."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = (
        STUDENT[max(k for k in STUDENT if k <= len(values))]
        * statistics.stdev(values)
        / math.sqrt(len(values))
    )
    return mean, mean - half, mean + half


def starts() -> tuple[float, float]:
    """Milliseconds by which the hook delays the start of a Python process: of any, and of a rank."""
    found: dict[str, list[float]] = {"plain": [], "any": [], "rank": []}
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        for name in ("stacks", "local"):
            (Path(folder) / name).mkdir()
        hook = {"PYTHONPATH": str(HOOK)}
        own = {
            "FSDP_DOCTOR_RUN": folder,
            "FSDP_DOCTOR_LOCAL": f"{folder}/local",
            "FSDP_DOCTOR_PID": str(os.getpid()),
        }
        kinds = {"plain": {}, "any": {**hook, **own}, "rank": {**hook, **own, "RANK": "0"}}
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK")}
        for _ in range(STARTS):
            for kind in random.sample(list(kinds), len(kinds)):
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", "pass"], env={**clean, **kinds[kind]}, check=True)
                found[kind].append((time.perf_counter() - began) * 1e3)
    plain = min(found["plain"])
    return min(found["any"]) - plain, min(found["rank"]) - plain


def main() -> int:
    """Run the pairs and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0, help="of steps, in each job")
    parser.add_argument("--width", type=int, default=512, help="of the model's layers")
    given = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} processors; load {os.getloadavg()[0]:.1f}; {given.pairs} pairs")
    pairs: list[tuple[Job, Job]] = []
    with tempfile.TemporaryDirectory(prefix="bench-run-") as name:
        trial = job(Path(name), given.width, 40, False, -1)
        steps = max(20, int(given.seconds / trial.step))
        for number in range(given.pairs):
            found = {
                u: job(Path(name), given.width, steps, u, number) for u in (number % 2 == 0, number % 2 == 1)
            }
            plain, under = found[False], found[True]
            pairs.append((plain, under))
            print(
                f"pair {number}: step {plain.step * 1e3:.2f} ms plain, {under.step * 1e3:.2f} ms under run, ratio "
                f"{under.step / plain.step:.4f}; processor time {under.spent / plain.spent:.4f}; counted "
                f"{counted(plain, under) * 100:.3f} %",
                flush=True,
            )
    return report(pairs, steps)


def counted(plain: Job, under: Job) -> float:
    """What `run` adds, as a share of what the ranks spend. The agent's time without it is what it polls anyway."""
    return (under.run + under.hooks + under.agent - plain.agent) / plain.ranks


def report(pairs: Sequence[tuple[Job, Job]], steps: int) -> int:
    """Print the three answers and the seconds at start and end; the exit status."""
    lines = (steps + 10) * RANKS
    print(
        f"{steps} steps of {statistics.median(p.step for p, _ in pairs) * 1e3:.2f} ms, {RANKS} lines of output each"
    )
    mean, low, high = spread([counted(p, u) for p, u in pairs])
    print(f"counted: run adds {mean * 100:.3f} % of a step (95 %: {low * 100:.3f} to {high * 100:.3f})")
    for name, ratios in (
        ("processor time of all processes", [u.spent / p.spent for p, u in pairs]),
        ("wall time of a step", [u.step / p.step for p, u in pairs]),
    ):
        middle, least, most = interval(ratios)
        told = (
            "below 1 %"
            if most < 1 + LIMIT
            else "1 % or more"
            if least > 1 + LIMIT
            else "this machine cannot tell"
        )
        print(f"{name}, under run / plain: {middle:.4f} (95 %: {least:.4f} to {most:.4f}): {told}")
    own = statistics.median(u.run for _, u in pairs)
    agent = statistics.median(u.agent for _, u in pairs) - statistics.median(p.agent for p, _ in pairs)
    hooks = statistics.median(u.hooks for _, u in pairs)
    print(
        f"  of it per line of output: {own / lines * 1e6:.0f} us in run, {agent / lines * 1e6:.0f} us in torchrun's agent; "
        f"{hooks * 1e3:.1f} ms in the ranks in all"
    )
    whole = statistics.median(u.whole - p.whole for p, u in pairs)
    some, rank = starts()
    print(
        f"start and end, the diagnosis included: {whole:.2f} s more; the hook delays the start of a Python process by "
        f"{some:.1f} ms, of a rank by {rank:.1f} ms"
    )
    print(
        f"{'below' if high < LIMIT else 'NOT below' if mean >= LIMIT else 'not shown to be below'} {LIMIT:.0%}"
    )
    return 0 if high < LIMIT else 1 if low >= LIMIT else 3


if __name__ == "__main__":
    sys.exit(main())
