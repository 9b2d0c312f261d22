"""One rank from its start to its end, in the stages of `fsdp_doctor.subjects.probe.STAGES`."""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from . import collectives, device, local_work, meeting, pairs
from .journal import Journal

if TYPE_CHECKING:
    import torch

EAGER_HANGS = ((2, 6, 1), (2, 7, 1))
"""Releases of torch, first and past the last, in which connecting at once (`device_id`) can hang."""
RESERVE = 0.1
"""Part of the deadline that is left to what follows the sweep."""
FIRST_SIZE = 64 << 10
RECHECK_SECONDS = 8.0
"""For whoever started the ranks to say what to measure again."""
PAIR_SECONDS = 4.0
"""After which rounds of pairs are not run once more."""
POLL = 0.01


class Rank:
    """What one rank knows and does."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.began = time.monotonic()
        self.job, self.plan = job, job["plan"]
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.journal = Journal(job["folder"], self.rank, self.plan["deadline_seconds"])
        self.journal.note(host=socket.gethostname(), local_rank=self.local_rank)
        self.groups: list[collectives.Group] = []
        self.transfers: pairs.Transfers | None = None
        self.copies: local_work.Copies | None = None
        self.buffers: collectives.Buffers | None = None

    def left(self) -> float:
        """Seconds until the deadline."""
        return float(self.plan["deadline_seconds"]) - (time.monotonic() - self.began)

    def run(self) -> None:
        """All stages. Raises whatever ends the rank."""
        self._import()
        self._join()
        self._connect()
        self._work(0)
        self._copies(0)
        self._sweep()
        self._pairs()
        self._again()
        self.journal.stage("done")
        self.meeting.part()

    def _import(self) -> None:
        self.journal.stage("import")
        # Errors of NCCL are to be raised here and told, not to end the process from a thread of its own.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = os.environ["NCCL_ASYNC_ERROR_HANDLING"] = "0"
        began = time.monotonic()
        import torch
        import torch.distributed

        self.torch = torch
        self.journal.note(import_seconds=time.monotonic() - began, torch=str(torch.__version__))

    def _join(self) -> None:
        """Meet the others at the store, then create the process group."""
        import torch.distributed as dist

        timeout = float(self.plan["timeout_seconds"])
        self.journal.stage("rendezvous")
        store = meeting.connect(self.job["name"], self.rank, self.world, timeout)
        self.meeting = meeting.Meeting(store, self.rank, self.world, timeout, self.journal)
        self.meeting.all_ready()
        self.journal.stage("group")
        chosen = self.meeting.prepare(self._choose_device)
        if chosen is None:
            raise device.Lost("connection closed by peer: another rank has no device to use")
        self.device = chosen
        self.journal.note(**self.device.about())
        options: dict[str, Any] = {}
        if self.device.kind == "cuda" and self._eager():
            options["device_id"] = self.device.device
        # On GPUs waits are bounded by this program; the backend's own limit would end the process.
        limit = timeout if self.device.kind == "cpu" else timeout + self.plan["deadline_seconds"]
        began = time.monotonic()
        dist.init_process_group(
            self.plan["backend"],
            store=dist.PrefixStore("group", store),
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=limit),
            **options,
        )
        self.journal.note(init_seconds=time.monotonic() - began)
        self.world_group = collectives.Group("world", list(range(self.world)), self.rank, dist.group.WORLD)
        if self.device.kind == "cuda":
            version = self.torch.cuda.nccl.version()
            self.journal.note(nccl=".".join(str(n) for n in version if isinstance(n, int)))

    def _choose_device(self) -> device.Device:
        try:
            timeout = float(self.plan["timeout_seconds"])
            return device.choose(self.plan["backend"], self.local_rank, self.job.get("devices"), timeout)
        except Exception as error:
            self.journal.error(error)
            raise

    def _eager(self) -> bool:
        """Whether this torch can connect at once, and without the fault that some releases have."""
        import torch.distributed as dist

        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", str(self.torch.__version__))
        release = tuple(int(n) for n in numbers.groups()) if numbers else (0, 0, 0)
        known = "device_id" in inspect.signature(dist.init_process_group).parameters
        return known and not EAGER_HANGS[0] <= release < EAGER_HANGS[1]

    def _connect(self) -> None:
        """The first collective, then the operations that this backend has."""
        self.journal.stage("connect")
        self.sweep = collectives.Sweep(self.plan, self.device, self.journal)
        self.meeting.all_ready()
        began = time.monotonic()
        self.journal.progress.enter()
        self.sweep.barrier(self.world_group)
        self.journal.progress.leave()
        self.journal.note(connect_seconds=time.monotonic() - began)
        self.journal.stage("data")
        small = collectives.GRAIN * self.world
        self.ops: list[str] = []
        for op in self.plan["ops"]:
            case = self.meeting.prepare(partial(self._case_for, op, small))
            if case is not None and self.meeting.prepare(partial(self._try, case)):
                self.ops.append(op)

    def _case_for(self, op: str, size: int) -> collectives.Case:
        buffers = collectives.Buffers(self.device.device, self._dtype(), size, 1)
        case = collectives.Case(op, size, self.world_group, buffers)
        case.fill()
        return case

    def _try(self, case: collectives.Case) -> bool:
        """Run an operation once. One that the backend lacks is lacking on all ranks."""
        case.step()
        self.device.sync(case.op)
        return True

    def _dtype(self) -> torch.dtype:
        chosen: torch.dtype = getattr(self.torch, self.plan["dtype"])
        return chosen

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
        return collectives.Buffers(self.device.device, self._dtype(), size, parts)

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
        self.groups = []
        self._kinds: list[str] = []
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
        for turn in range(transfers.passes):
            for pair in suspected:
                if not self._time_left(turn == 0 or time.monotonic() < began + PAIR_SECONDS):
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


def main(path: str) -> None:
    """Run the job in the file `path` and end the process: 0 after the last stage, 1 after an error."""
    with open(path) as file:
        rank = Rank(json.load(file))
    try:
        rank.run()
    except BaseException as error:
        rank.journal.error(error)
        # Ending at once closes the connections, so that partners learn of it; cleaning up could hang.
        os._exit(1)
    os._exit(0)
