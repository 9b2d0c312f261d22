"""Figures of `fsdp-doctor check` on this machine: start, quick profile, memory, recordings.

Timings are taken as interleaved pairs in one run and printed with their ratio, since machines are noisy.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fixtures import machines

DOCTOR = [sys.executable, "-m", "fsdp_doctor"]
ROOT = Path(__file__).parents[1]
RUNS = 7
RANKS = 1000


def timed(command: list[str]) -> tuple[float, int, int]:
    """Wall seconds, peak resident KiB of the process itself (not of its children), exit status."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    peak = 0
    while child.poll() is None:
        try:
            status = Path(f"/proc/{child.pid}/status").read_text("ascii")
            peak = max(peak, *(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM:")))
        except (OSError, TypeError, ValueError):
            pass
        time.sleep(0.002)
    return time.perf_counter() - began, peak, child.returncode


def interleaved(commands: dict[str, list[str]]) -> dict[str, list[tuple[float, int, int]]]:
    """Run each command `RUNS` times, taking turns."""
    out: dict[str, list[tuple[float, int, int]]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            out[name].append(timed(command))
    return out


def median(runs: list[tuple[float, int, int]]) -> float:
    return statistics.median(seconds for seconds, _, _ in runs)


def start() -> None:
    runs = interleaved({"help": [*DOCTOR, "--help"], "python": [sys.executable, "-c", "pass"]})
    heavy = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fsdp_doctor", "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stderr  # fmt: skip
    torch = any(line.split("|")[-1].strip() == "torch" for line in heavy.splitlines())
    print(
        f"--help: {median(runs['help']):.3f} s (bound 0.25; bare python {median(runs['python']):.3f}); torch imported: {torch}"
    )


def quick() -> None:
    runs = interleaved(
        {
            "check": [*DOCTOR, "check", "--profile", "quick", "--format", "json"],
            "collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
        }
    )
    ours, theirs = median(runs["check"]), median(runs["collect_env"])
    peak = max(kib for _, kib, _ in runs["check"]) / 1024
    print(
        f"check --profile quick: {ours:.2f} s; torch.utils.collect_env: {theirs:.2f} s; ratio {ours / theirs:.2f} (bound 1)"
    )
    print(f"memory of the tool itself: {peak:.0f} MB (bound 120)")


def recordings(folder: Path) -> None:
    one = folder / "one"
    machines.h100().write(one)
    runs = [timed([*DOCTOR, "check", "--from", str(one), "--format", "json"]) for _ in range(RUNS)]
    print(
        f"judging a recording of 8 GPUs: {median(runs):.2f} s, {max(r[1] for r in runs) / 1024:.0f} MB (bound 0.5 s)"
    )
    many = folder / "many"
    for rank in range(RANKS):
        m = machines.job_node(f"node-{rank // 8}", f"10.{40 + rank // 8 // 250}.{rank // 8 % 250}.11/16")
        m.rank, m.world_size = rank, RANKS
        m.env |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank % 8)}
        m.write(many if rank == 0 else many / "ranks" / str(rank))
    seconds, kib, code = timed([*DOCTOR, "check", "--from", str(many), "--format", "json"])
    print(
        f"judging {RANKS} recordings of ranks: {seconds:.1f} s, {kib / 1024:.0f} MB, exit {code} (bound 30 s)"
    )


def main() -> None:
    print(json.dumps({"python": sys.version.split()[0], "cpus": os.cpu_count()}))
    start()
    quick()
    with tempfile.TemporaryDirectory() as folder:
        recordings(Path(folder))


if __name__ == "__main__":
    main()
