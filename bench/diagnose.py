"""Time and memory of `diagnose` on logs: ordinary ones with a failure at the end, and nothing but complaints.

Prints what each takes, with the figures that it should stay within. `--small` takes a tenth.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fsdp_doctor.diagnosis.matcher import matcher
from fsdp_doctor.diagnosis.session import read

GB = 10**9
RANKS = 8
FAILURE = (
    "[rank7]: Traceback (most recent call last):\n"
    '[rank7]:   File "/job/train.py", line 3, in main\n[rank7]:     step()\n[rank7]: ValueError: bad sample at index 17\n'
)


def ordinary() -> bytes:
    """A piece of a training log of eight ranks with a warning now and then."""
    lines = []
    for step in range(2000):
        for rank in range(RANKS):
            lines.append(
                f"[rank{rank}]: 2026-12-01 10:{step // 60 % 60:02d}:{step % 60:02d},{rank}23 INFO trainer: step {step} "
                f"loss {2.5 - step / 2000:.4f} grad_norm {0.9 + rank / 100:.3f} lr 3.0e-04 tokens/s {12000 + rank} mem 61.2GiB\n"
            )
            if step % 50 == 0:
                lines.append(
                    f"[rank{rank}]: WARNING data: shard {step} has {rank} short samples; error rate 0.0\n"
                )
    return "".join(lines).encode()


def timeouts(start: int = 0) -> bytes:
    """What eight ranks print when a collective times out, and what their peers and their programs say."""
    lines = []
    for number in range(start, start + 4000):
        rank = number % RANKS
        lines.append(
            f"[rank{rank}]:[E402 03:14:07.{number % 1000000:06d} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
            f"collective operation timeout: WorkNCCL(SeqNum={number}, OpType=_ALLGATHER_BASE, NumelIn=1024, NumelOut=8192, "
            "Timeout(ms)=600000) ran for 600046 milliseconds before timing out.\n"
            f"[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.5]:61618.\n"
            f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/job/train.py", line 9, in main\n'
            f"[rank{rank}]:     x()\n[rank{rank}]: ValueError: bad sample {number}\n"
        )
    return "".join(lines).encode()


def write(path: Path, piece: bytes, size: int, end: bytes = b"") -> int:
    """Repeat a piece up to a size."""
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(piece)
        file.write(end)
        return file.tell()


def timed(path: Path) -> tuple[float, float, float, int]:
    """Wall seconds, processor seconds, MB of the largest process, exit status of one `diagnose`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", "diagnose", str(path), "--format", "json"],
        capture_output=True,
        check=False,
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss / 1024, done.returncode


def parts(path: Path, size: int) -> None:
    """Where the time of the first 100 MB goes: reading, searching, all."""
    with path.open("rb") as file:
        data = file.read(min(size, 10**8))
    for plain in (False, True):
        piece = data if not plain else data[: 10**7]
        began = time.perf_counter()
        matcher(plain).places(piece)
        rate = len(piece) / (time.perf_counter() - began) / 1e6
        print(f"  search with {matcher(plain).name}: {rate:.0f} MB/s")
    part = path.with_suffix(".part")
    part.write_bytes(data[: 50 * 10**6])
    began = time.process_time()
    read([str(part)], workers=1)
    print(
        f"  everything in one process: {part.stat().st_size / (time.process_time() - began) / 1e6:.0f} MB/s"
    )


def main() -> int:
    """Print the figures."""
    size = GB // 10 if "--small" in sys.argv else GB
    print(f"{len(os.sched_getaffinity(0))} processors; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        for name, piece, limit, bytes_ in (
            ("ordinary log with a failure", ordinary(), "6 s per GB", size),
            ("nothing but complaints", timeouts(), "60 s per GB", size),
            ("10 MB, first answer", ordinary(), "1 s", 10**7),
        ):
            length = write(path, piece, bytes_, FAILURE.encode())
            wall, cpu, memory, status = timed(path)
            print(
                f"{name}: {length / 1e6:.0f} MB in {wall:.2f} s ({cpu:.2f} s of processors), {memory:.0f} MB, "
                f"exit {status}; to stay within {limit} and 250 MB"
            )
        for piece in (
            ordinary(),
            timeouts(),
        ):  # last: this process's own memory would count as its children's
            parts(path, write(path, piece, 10**8))
    return 0


if __name__ == "__main__":
    sys.exit(main())
