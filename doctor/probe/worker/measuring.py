"""What the ranks measure once they are connected, stage by stage, and a second look at what seems wrong."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from functools import partial
from typing import Any

from . import collectives, local_work, pairs
from .connected import Connected
from .load import Load

RESERVE = 0.1
"""Part of the deadline that is left to what follows the sweep."""
RECHECK_SECONDS = 8.0
"""For whoever started the ranks to say what to measure again."""
PAIR_SECONDS = 4.0
"""After which rounds of pairs are not run once more."""
ALONE, ALONE_SECONDS = 2, 8.0
"""How many times as often suspected pairs are tried, and sound ones in turns with them: what disturbs shared
cores only adds time, so that a sound pair is cleared by one transfer that nothing disturbed."""
POLL = 0.01


class Measuring(Connected):
    """A connected rank and its measurements. All ranks call the same methods in the same order."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.groups: list[collectives.Group] = []
        self.transfers: pairs.Transfers | None = None
        self.copies: local_work.Copies | None = None
        self.buffers: collectives.Buffers | None = None
        self._kinds: list[str] = []

    def measure(self) -> None:
        """All stages after connecting."""
        self.load = Load()
        self._work(0)
        self._copies(0)
        self._sweep()
        self._pairs()
        self._again()
        self.journal.note(load=self.load.so_far())

    def _work(self, run: int) -> None:
        self.journal.stage("work", "" if run == 0 else "repeated")
        local_work.work(
            self.device,
            self.plan["work_repeats"],
            self.journal,
            lambda: self.sweep.barrier(self.world_group),
            run,
            self.plan["dtype"],
        )

    def _copies(self, run: int) -> None:
        """All ranks at once, then the ranks of each host one after the other."""
        sizes = self.plan["copy_bytes"]
        if not sizes or self.device.kind != "cuda":
            return
        self.journal.stage("copies", "" if run == 0 else "repeated")
        if self.copies is None:
            self.copies = self.meeting.prepare(lambda: local_work.Copies(self.device, sizes))
        if self.copies is None:
            return
        self.copies.run(self.journal, alone=False, run=run)
        for turn in range(self.job["most_local"]):
            self.sweep.barrier(self.world_group)
            if turn == self.local_rank:
                self.copies.run(self.journal, alone=True, run=run)
        self.sweep.barrier(self.world_group)

    def _sweep(self) -> None:
        """Largest first, so that memory is taken once; groups of nodes and rails after the whole world."""
        self.journal.stage("sweep")
        self._make_groups()
        sizes = sorted(self.plan["sizes"], reverse=True)
        while sizes and self.buffers is None:
            self.buffers = self.meeting.prepare(lambda: self._buffers(sizes[0]))
            if self.buffers is None:
                sizes.pop(0)
        for size in sizes:
            for op in self.ops:
                if not self._time_left():
                    return
                self._case(op, size, self.world_group, 0)
        for size in sizes[:1]:
            for op in (o for o in self.ops if o in ("all_gather", "reduce_scatter")):
                for mine in self._own_groups():
                    if not self._time_left():
                        return
                    self._case(op, size, mine, 0)

    def _buffers(self, size: int) -> collectives.Buffers:
        smallest = min([self.world, *(len(ranks) for _, ranks in self.job["groups"])])
        parts = 1 if "all_to_all" in self.ops else smallest
        return collectives.Buffers(self.device.device, self.dtype(), size, parts)

    def _case(self, op: str, size: int, group: collectives.Group | None, run: int) -> None:
        if group is not None and self.buffers is not None:
            case = collectives.Case(op, self._fitting(size, group.size), group, self.buffers)
            self.sweep.run(case, float(self.plan["size_seconds"]), run)
        if len(self.groups) > 0:
            self.meeting.all_ready()

    def _fitting(self, size: int, ranks: int) -> int:
        return size - size % (collectives.GRAIN * ranks)

    def _time_left(self, wanted: bool = True) -> bool:
        """Whether rank 0 wants to go on and there is time for one more step."""
        enough = RESERVE * self.plan["deadline_seconds"] + self.plan["size_seconds"]
        return self.meeting.decide(lambda: "yes" if wanted and self.left() > enough else "no") == "yes"

    def _make_groups(self) -> None:
        """Communicators of nodes and rails; every rank makes all of them, in the same order."""
        import torch.distributed as dist

        timeout = timedelta(seconds=float(self.plan["timeout_seconds"]) + self.plan["deadline_seconds"])
        for name, ranks in self.job["groups"]:
            handle = dist.new_group(ranks, timeout=timeout)
            kind = name.split(":")[0]
            if kind not in self._kinds:
                self._kinds.append(kind)
            if self.rank in ranks:
                self.groups.append(collectives.Group(name, list(ranks), self.rank, handle))

    def _own_groups(self) -> list[collectives.Group | None]:
        """Of each kind this rank's group: all nodes are measured at once, then all rails."""
        found = {g.name.split(":")[0]: g for g in self.groups}
        return [found.get(kind) for kind in self._kinds]

    def _pairs(self) -> None:
        sizes = self.plan["pair_bytes"]
        if not sizes or not self.job["rounds"]:
            return
        self.journal.stage("pairs")
        for size in sorted(sizes, reverse=True):
            self.transfers = self.meeting.prepare(
                partial(pairs.Transfers, self.device, self.rank, self.journal, size)
            )
            if self.transfers is None:
                continue
            self._tournament(self.transfers)

    def _tournament(self, transfers: pairs.Transfers) -> None:
        """All rounds, as often as the device needs."""
        rounds = [[(a, b) for a, b in planned] for planned in self.job["rounds"]]
        began = time.monotonic()
        for turn in range(transfers.passes):
            for number, planned in enumerate(rounds):
                if not self._time_left(turn == 0 or time.monotonic() < began + PAIR_SECONDS):
                    break
                self.journal.stage("pairs", f"round {number + 1} of {len(rounds)}")
                self.sweep.barrier(self.world_group)
                transfers.exchange(planned, self.plan["pair_repeats"])
        transfers.write(rounds, run=0, alone=False)

    def _again(self) -> None:
        """Measure once more what a first look at the figures suspects."""
        stage = "pairs" if self.job["rounds"] else "sweep"
        self.journal.stage(stage, "looking at the figures")
        self.journal.note(load=self.load.so_far())
        self._hand_in("first")
        self.journal.write({"looked": False})
        wanted = json.loads(self.meeting.decide(self._wanted))
        if wanted.get("work") and self._time_left():
            self._work(1)
        if wanted.get("copies") and self._time_left():
            self._copies(1)
        for op, size, name in wanted.get("collectives", ()):
            if self._time_left() and op in self.ops and self.buffers is not None:
                named = [self.world_group, *self.groups]
                self._case(op, size, next((g for g in named if g.name == name), None), 1)
        if wanted.get("pairs") and self.transfers is not None:
            self._suspects(self.transfers, [(a, b) for a, b in wanted["pairs"]])

    def _suspects(self, transfers: pairs.Transfers, suspected: list[tuple[int, int]]) -> None:
        """The suspected pairs once more, one at a time."""
        began = time.monotonic()
        for turn in range(ALONE * transfers.passes):
            for pair in suspected:
                if not self._time_left(turn == 0 or time.monotonic() < began + ALONE_SECONDS):
                    break
                self.journal.stage("pairs", f"once more rank {pair[0]} and rank {pair[1]}")
                self.sweep.barrier(self.world_group)
                transfers.exchange([pair], self.plan["pair_repeats"])
        transfers.write([], run=1, alone=True)

    def _wanted(self) -> str:
        """What is to be measured again, from the file that whoever started the ranks writes."""
        path = os.path.join(self.job["folder"], "again.json")
        until = time.monotonic() + min(RECHECK_SECONDS, self.left() / 2)
        while time.monotonic() < until:
            if os.path.exists(path):
                with open(path) as file:
                    return file.read()
            time.sleep(POLL)
        return "{}"

    def _hand_in(self, name: str) -> None:
        """Bring the lines of ranks elsewhere to the folder of rank 0, where one job has several folders."""
        if not self.job["scattered"]:
            return
        self.meeting.hand_in(name, self.journal.lines)
        self.meeting.all_ready()
        if self.rank == 0:
            for other in range(1, self.world):
                path = os.path.join(self.job["folder"], f"rank-{other}.{name}.jsonl")
                with open(path, "w") as file:
                    file.write(self.meeting.collect(name, other))
        self.meeting.all_ready()
