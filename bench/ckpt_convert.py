"""How fast and in how much memory `ckpt convert` copies a checkpoint, against cp: FOLDER [--gb N].

Prints a line per target: seconds of the whole process with fsync, the part of cp's throughput (cp and sync), and
the child's highest resident memory above what it had at start-up.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SRC = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
torch.manual_seed(0)
state = {"model": {f"layers.{i}.weight": torch.randn(4096, 4096) for i in range(int(sys.argv[2]))}}
dcp.save(state, checkpoint_id=sys.argv[1], no_dist=True)
"""
CHILD = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from fsdp_doctor.ckpt import memory
from fsdp_doctor.ckpt.convert.here import Order, convert
memory.enable()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(Order(sys.argv[2], sys.argv[3], sys.argv[4]), lambda n: None, lambda n: None)
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def timed(argv: list[str]) -> tuple[float, str]:
    """Seconds and standard output."""
    began = time.monotonic()
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return time.monotonic() - began, done.stdout


def main() -> int:
    """Make a checkpoint, copy it, convert it, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    root = str(Path(__file__).parent.parent)
    count = max(1, round(given.gb * 1e9 / (4096 * 4096 * 4)))
    size = count * 4096 * 4096 * 4
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        source = f"{folder}/source"
        subprocess.run([sys.executable, "-c", SRC, source, str(count)], check=True, stderr=subprocess.DEVNULL)
        best: dict[str, float] = {}
        above: dict[str, int] = {}
        for _ in range(given.rounds):
            seconds, _ = timed(["sh", "-c", f"cp -r '{source}' '{folder}/copy' && sync -f '{folder}/copy'"])
            best["cp"] = min(best.get("cp", seconds), seconds)
            shutil.rmtree(f"{folder}/copy")
            for to in ("safetensors", "torch", "dcp"):
                target = f"{folder}/out-{to}"
                seconds, text = timed([sys.executable, "-I", "-S", "-c", CHILD, root, source, target, to])
                before, after = map(int, text.split())
                best[to] = min(best.get(to, seconds), seconds)
                above[to] = max(above.get(to, 0), after - before)
                shutil.rmtree(target) if os.path.isdir(target) else os.unlink(target)
    print(f"{size / 1e9:.2f} GB in {count} tensors; cp and sync: {best['cp']:.2f} s")
    worst = 0
    for to, kilobytes in above.items():
        part = best["cp"] / best[to]
        print(
            f"{to}: {best[to]:.2f} s, {size / 1e9 / best[to]:.2f} GB/s, {part:.0%} of cp; "
            f"{kilobytes / 1024:.0f} MiB above start-up"
        )
        worst |= part < 0.6 or kilobytes > 64 * 1024
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
    return int(worst)


if __name__ == "__main__":
    raise SystemExit(main())
