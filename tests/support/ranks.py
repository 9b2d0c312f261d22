"""Ranks as real processes, started by hand, that never outlive the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "MASTER_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "FSDP_DOCTOR_",
)
HANGING_TORCH = "import os, time\nrank = os.getppid()\nwhile os.getppid() == rank:\n    time.sleep(0.1)\n"
"""For as long as the rank lives whose child imports it."""
BROKEN_TORCH = "raise OSError('libcudart.so.13: cannot open shared object file: No such file or directory')\n"


def clean_environment() -> dict[str, str]:
    """This process's variables without those of a launcher, with the package in reach."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return kept | {"PYTHONPATH": str(ROOT)}


def free_port(count: int = 8) -> int:
    """A port that is free, and so many after it."""
    for base in range(20000 + os.getpid() % 8000, 32000, count):
        held: list[socket.socket] = []
        try:
            for port in range(base, base + count):
                held.append(socket.socket())
                held[-1].bind(("", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return base
    raise RuntimeError("no free ports")


@dataclass
class Ended:
    """How one rank ended."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, object]:
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


@dataclass
class Ranks:
    """Processes of one job. Leave the `with` block to end them all, stopped ones included."""

    folder: Path
    world: int
    prefix: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Words before a rank's command, such as those that enter a namespace."""
    address: str = "127.0.0.1"
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.journal = self.folder / "journal"
        self.journal.mkdir()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                for number in (signal.SIGKILL, signal.SIGCONT):
                    process.send_signal(number)
            process.wait(20)

    def torch(self, code: str) -> str:
        """A folder whose torch is this code; for the PYTHONPATH of a rank."""
        folder = self.folder / f"torch-{abs(hash(code))}"
        folder.mkdir(exist_ok=True)
        (folder / "torch.py").write_text(code)
        return f"{folder}:{ROOT}"

    def start(self, rank: int, *words: str, **env: str) -> None:
        """Start one rank of `fsdp-doctor WORDS` with the variables of torch."""
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }
        self._start(rank, words, own | env)

    def start_step(self, rank: int, nodes: str, *words: str) -> None:
        """Start one rank with the variables of srun, one task per node, and no MASTER_ADDR."""
        own = {
            "SLURM_JOB_ID": "4711",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(rank),
            "SLURM_NTASKS": str(self.world),
            "SLURM_STEP_NUM_TASKS": str(self.world),
            "SLURM_STEP_NUM_NODES": str(self.world),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{self.world})",
            "MASTER_PORT": str(self.port),
        }
        self._start(rank, words, own)

    def _start(self, rank: int, words: Sequence[str], own: Mapping[str, str]) -> None:
        argv = [*self.prefix.get(rank, ()), sys.executable, "-m", "fsdp_doctor", *words]
        with (self.folder / f"out.{rank}").open("wb") as out, (self.folder / f"err.{rank}").open("wb") as err:
            self.processes[rank] = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=clean_environment() | {"FSDP_DOCTOR_JOURNAL": str(self.journal)} | own,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def stages(self, rank: int) -> str:
        """What a rank has noted so far."""
        try:
            return (self.journal / f"rank-{rank}.log").read_text()
        except FileNotFoundError:
            return ""

    def until_stage(self, rank: int, words: str, seconds: float = 60.0) -> None:
        """Wait until a rank is in a stage."""
        wait_for(lambda: words in self.stages(rank), seconds, lambda: f"{words!r} in {self.stages(rank)!r}")

    def end(self, rank: int, seconds: float = 90.0) -> Ended:
        """Wait for one rank."""
        code = self.processes[rank].wait(seconds)
        return Ended(code, *((self.folder / f"{n}.{rank}").read_text() for n in ("out", "err")))


def wait_for(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Poll until it is so; fails the test after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what()}"
        time.sleep(0.05)


def results(report: Mapping[str, object], code: str) -> list[dict[str, object]]:
    """The results of one check."""
    found = report["results"]
    assert isinstance(found, list)
    return [r for r in found if r["code"] == code]
