"""Flight Recorder dumps of 256 and 1,024 ranks, 2,000 entries each: seconds and peak memory of reading and judging
them, and torchfrtrace beside it on the same files.

    python -m bench.flight [--ranks 256,1024] [--folder DIR] [--full | --no-torchfrtrace]

The files are in the form that torch's own pickler writes, with stacks of 20 frames (0.9 MB a rank). torchfrtrace is
run on up to 256 ranks, with `--full` on all: it then takes minutes and gigabytes, of which it may have so many that
the machine keeps a fifth of its memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from fixtures.dumps.large import write
from fixtures.dumps.torchfrtrace import PREFIX, understood

ROOT = Path(__file__).parents[1]
LIMITS = {256: 5.0, 1024: 15.0}
MEBIBYTES = 300
CULPRIT = 37
USUAL = 256
"""Ranks up to which torchfrtrace is run without `--full`."""
TORCHFRTRACE = 280.0
OURS = """
import sys
from fsdp_doctor.diagnosis import flight
first = flight.judge(flight.read(sys.argv[1:])).conclusions[0]
print(*first.ranks)
print(first.words[:120])
"""


@dataclass(frozen=True)
class Run:
    """Wall seconds, processor seconds, peak MiB of a process and its children together, its output and status."""

    seconds: float
    spent: float
    peak: float
    text: str
    status: int | None


def measured(argv: list[str], limit: float, memory: float = float("inf")) -> Run:
    """Run a command; it is ended at its limit of seconds or MiB, and its status is then None."""
    began = time.monotonic()
    peak = spent = 0.0
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        ended = False
        try:
            while process.poll() is None and not ended:
                now, used = _family(process.pid)
                peak, spent = max(peak, now), max(spent, used)
                ended = time.monotonic() - began > limit or peak > memory
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        seconds = time.monotonic() - began
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    return Run(seconds, spent, peak, text, None if ended else process.returncode)


def _family(pid: int) -> tuple[float, float]:
    """Resident MiB of a process and its children, and their processor seconds so far."""
    total, spent = 0, 0.0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            try:
                total += process.memory_info().rss
                times = process.cpu_times()
                spent += times.user + times.system
            except psutil.Error:
                continue
        ended = parent.cpu_times()
        spent += ended.children_user + ended.children_system
    except psutil.Error:
        return 0.0, 0.0
    return total / 2**20, spent


def ours(folder: Path, ranks: int) -> tuple[bool, tuple[int, ...]]:
    """Whether the doctor keeps to its limits, and whom it names."""
    run = measured([sys.executable, "-c", OURS, str(folder)], 600.0)
    named, _, words = run.text.partition("\n")
    found = tuple(int(r) for r in named.split() if r.isdigit())
    right = run.status == 0 and found == (CULPRIT,)
    ok = right and run.seconds <= LIMITS.get(ranks, 60.0) and run.peak <= MEBIBYTES
    print(
        f"  fsdp-doctor:  {run.seconds:.1f} s ({run.spent:.1f} s of processors), {run.peak:.0f} MiB, "
        f"names rank {named or '?'}: {words.strip()[:90]}; {'ok' if ok else 'NOT OK'}",
        flush=True,
    )
    return ok, found


def theirs(folder: Path, found: tuple[int, ...]) -> bool:
    """Whether torchfrtrace, if it ends in time, names the same ranks."""
    script = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), "-p", PREFIX]
    free = psutil.virtual_memory().available / 2**20 - psutil.virtual_memory().total / 2**20 / 5
    run = measured(script, TORCHFRTRACE, free)
    figures = f"{run.seconds:.1f} s ({run.spent:.1f} s of processors), {run.peak:.0f} MiB"
    if run.status is None:
        print(f"  torchfrtrace: ended at its limit after {figures}")
        return True
    told = understood(run.status, run.text)
    named = ", ".join(map(str, told.first)) or told.error or "nobody"
    same = told.first == found
    print(f"  torchfrtrace: {figures}, names {named}: {'agrees' if same else 'DOES NOT AGREE'}", flush=True)
    return same


def main() -> int:
    """Print both; the status is 1 where the doctor is beyond its limits, or the two disagree."""
    parser = argparse.ArgumentParser(prog="python -m bench.flight", description=__doc__)
    parser.add_argument("--ranks", default="256,1024")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--no-torchfrtrace", action="store_true")
    args = parser.parse_args()
    sound = True
    base = args.folder or Path(tempfile.mkdtemp(prefix="flight-"))
    try:
        for ranks in map(int, args.ranks.split(",")):
            folder = base / str(ranks)
            if not folder.exists():
                write(folder, ranks, culprit=CULPRIT)
            size = sum(f.stat().st_size for f in folder.iterdir()) / 2**20
            print(f"{ranks} ranks x 2,000 entries, {size:.0f} MiB; load {os.getloadavg()[0]:.1f}", flush=True)
            ok, found = ours(folder, ranks)
            sound &= ok
            if not args.no_torchfrtrace and (args.full or ranks <= USUAL):
                sound &= theirs(folder, found)
            if args.folder is None:
                shutil.rmtree(folder)
    finally:
        if args.folder is None:
            shutil.rmtree(base, ignore_errors=True)
    return int(not sound)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left behind
    sys.exit(main())
