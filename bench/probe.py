"""Figures of `fsdp-doctor probe` on CPU ranks: against a plain torch loop, and how often it names the right rank.

`python -m bench.probe speed` compares medians, interleaved. `python -m bench.probe localise` runs probes with
and without a fault and records what each said (`bench.localisation`); `python -m bench.probe table --machine
"2 shared cores" FILE ...` writes docs/probe-localisation.md from such records.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.faults import BY_NAME
from bench.localisation import localise
from bench.localisation_table import table
from fsdp_doctor.probe.tournament import MIB
from fsdp_doctor.probe.verdicts import conclude
from tests.support import probing

PAGE = Path(__file__).parents[1] / "docs" / "probe-localisation.md"
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
                name, said = line.split()
                theirs.setdefault(name, []).append(float(said))
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


def main() -> None:
    """Run the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("speed", "localise", "table"))
    parser.add_argument("--faults", default=",".join(BY_NAME), help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--runs", type=int, default=20, help="probes of each fault")
    parser.add_argument("--healthy", type=int, default=50, help="probes without a fault")
    parser.add_argument("--record", type=Path, default=Path("localisation.jsonl"), help="lines are appended")
    parser.add_argument("--machine", nargs="+", action="append", metavar=("WORDS", "FILE"), default=[])
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if chosen.part == "speed":
        speed()
    elif chosen.part == "table":
        PAGE.write_text(table({words: [Path(f) for f in files] for words, *files in chosen.machine}))
    elif "PACED" in os.environ:
        import torch.distributed  # noqa: F401 - once, for all ranks

        faults = [BY_NAME[name] for name in chosen.faults.split(",")]
        localise(faults, chosen.runs, chosen.healthy, chosen.record)
    else:
        raise SystemExit(_preloaded())


def _preloaded() -> int:
    """The command again, with the library that slows sends down: nothing but a preload can bring it in."""
    with tempfile.TemporaryDirectory() as folder:
        library = os.environ.get("PACED_LIBRARY") or probing.paced_library(Path(folder))
        variables = {**os.environ, "PACED": "1", **({"LD_PRELOAD": str(library)} if library else {})}
        command = [sys.executable, "-m", "bench.probe", *sys.argv[1:]]
        return subprocess.run(command, env=variables, check=False).returncode


if __name__ == "__main__":
    main()
