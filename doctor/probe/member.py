"""One rank's worker under somebody else's launcher, and what is told of it in messages to rank 0."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.probe.assemble import Ending
from fsdp_doctor.probe.counters import Counters
from fsdp_doctor.probe.journals import Journal
from fsdp_doctor.probe.launch import PARENT, WORKER, clean, nccl_log
from fsdp_doctor.probe.settle import Seen
from fsdp_doctor.probe.watching import endings, kill, look
from fsdp_doctor.subjects.probe import NodeLinks

ENDING = 3.0
"""Seconds that a killed worker may need."""


@dataclass(frozen=True, slots=True)
class About:
    """What a rank says of itself before the probe is planned."""

    rank: int
    host: str = ""
    local_rank: int = 0
    gpus: int = 0
    busy: tuple[str, ...] = ()
    """GPUs that somebody else uses, in words."""
    links: NodeLinks | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says at the end."""

    ending: Ending
    lines: str = ""
    before: Counters = field(default_factory=Counters)
    after: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank of which job; `address` and `port` are those of the workers' own store."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int


class LocalRank:
    """The worker of this process. Close it in every case."""

    def __init__(self, rank: int, python: str = sys.executable) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fsdp-doctor-probe-"))
        self.journal = Journal(self.folder, rank)
        self._python = python
        self._child: process.Child | None = None
        self._began = time.monotonic()

    def run(self, job: Mapping[str, object], place: Place) -> None:
        """Start the worker with a job as rank 0 describes it."""
        path = self.folder / "job.json"
        path.write_text(json.dumps({**job, "folder": str(self.folder)}))
        planned = job.get("plan")
        backend = str(planned.get("backend")) if isinstance(planned, Mapping) else ""
        variables = {
            **clean(os.environ),
            **nccl_log(backend, self.folder),
            PARENT: str(os.getpid()),
            "RANK": str(place.rank),
            "WORLD_SIZE": str(place.world_size),
            "LOCAL_RANK": str(place.local_rank),
            "MASTER_ADDR": place.address,
            "MASTER_PORT": str(place.port),
        }
        self._began = time.monotonic()
        self._child = process.start([self._python, "-B", str(WORKER), str(path)], env=variables)

    def seen(self) -> Seen:
        """How far the worker is."""
        return look(self.journal)

    def answer(self, wanted: str) -> None:
        """Tell the worker of rank 0 what is to be measured again."""
        target = self.folder / "again.json"
        part = target.with_suffix(".part")
        part.write_text(wanted)
        part.replace(target)

    def handed_in(self, world_size: int) -> list[Journal]:
        """The journals of all ranks as rank 0's worker collected them for a first look."""
        found = [self.journal]
        for rank in range(1, world_size):
            journal = Journal(self.folder, rank)
            path = self.folder / f"rank-{rank}.first.jsonl"
            journal.feed(path.read_bytes().split(b"\n") if path.exists() else [])
            found.append(journal)
        return found

    def finish(self, still: frozenset[int]) -> tuple[Ending, str]:
        """End the worker; how it ended, and all its lines."""
        (ending,) = endings([look(self.journal)], [self.journal], still)
        kill([self.journal])
        code = None
        if self._child is not None:
            outcome = self._child.result(time.monotonic() - self._began + ENDING)
            code = outcome.returncode if ending.ended_itself else None
            if not self.journal.begun:
                ending = _unheard(ending, outcome)
        self.journal.poll()
        path = self.folder / f"rank-{self.journal.rank}.jsonl"
        lines = path.read_text(errors="replace") if path.exists() else ""
        return replace(ending, exit_code=code), lines

    def close(self) -> None:
        """End what is left and remove the folder."""
        kill([self.journal])
        if self._child is not None:
            self._child.result(0.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unheard(ending: Ending, outcome: process.Outcome) -> Ending:
    said = outcome.stderr.decode("utf-8", "replace").strip()
    return replace(ending, output=(outcome.error or said)[-2000:])
