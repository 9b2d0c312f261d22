"""Flight Recorder dumps of 256 and 1,024 ranks, 2,000 entries each: seconds and peak memory, torchfrtrace beside it.

    python -m bench.flight [--ranks 256,1024] [--folder DIR] [--no-torchfrtrace]

The files are in the form that torch's own pickler writes, with stacks of 20 frames (0.9 MB a rank).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fixtures.dumps.large import write

ROOT = Path(__file__).parents[1]
LIMITS = {256: 5.0, 1024: 15.0}
MEBIBYTES = 300
CULPRIT = 37
TORCHFRTRACE = 240.0
OURS = "import sys\nfrom fsdp_doctor.diagnosis import flight\nv = flight.judge(flight.read(sys.argv[1:]))\nprint(v.conclusions[0].ranks, v.conclusions[0].words[:200])"


def measured(argv: list[str], limit: float) -> tuple[float, float, str]:
    """Wall seconds, peak MiB of the largest process and its children together, and the output's end."""
    began = time.monotonic()
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, family_mib(process.pid))
        if time.monotonic() - began > limit:
            process.kill()
            process.wait()
            return limit, peak, "(ended at its time limit)"
        time.sleep(0.05)
    assert process.stdout is not None
    return time.monotonic() - began, peak, process.stdout.read()[-300:].strip()


def family_mib(pid: int) -> float:
    import psutil

    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0.0
    return total / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="256,1024")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--no-torchfrtrace", action="store_true")
    args = parser.parse_args()
    failed = False
    base = args.folder or Path(tempfile.mkdtemp(prefix="flight-"))
    try:
        for ranks in map(int, args.ranks.split(",")):
            folder = base / str(ranks)
            if not folder.exists():
                write(folder, ranks, culprit=CULPRIT)
            size = sum(f.stat().st_size for f in folder.iterdir()) / 2**20
            seconds, peak, said = measured([sys.executable, "-c", OURS, str(folder)], 600.0)
            ok = seconds <= LIMITS.get(ranks, 60.0) and peak <= MEBIBYTES and said.startswith(f"({CULPRIT},)")
            failed |= not ok
            print(
                f"{ranks} ranks, {size:.0f} MiB: {seconds:.1f} s, {peak:.0f} MiB {'ok' if ok else 'TOO MUCH'}  {said[:120]}"
            )
            if not args.no_torchfrtrace:
                script = [
                    sys.executable,
                    "-m",
                    "torch.distributed.flight_recorder.fr_trace",
                    str(folder),
                    "-p",
                    "nccl_trace_rank_",
                ]
                seconds, peak, said = measured(script, TORCHFRTRACE)
                print(
                    f"  torchfrtrace: {seconds:.1f} s, {peak:.0f} MiB  {said.splitlines()[-1][:120] if said else ''}"
                )
    finally:
        if args.folder is None:
            shutil.rmtree(base, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
