"""A rank until it is connected: import torch, meet the others, create the group, see what the backend has."""

from __future__ import annotations

import inspect
import os
import re
import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from . import collectives, device, meeting
from .journal import Journal

if TYPE_CHECKING:
    import torch

EAGER_HANGS = ((2, 6, 1), (2, 7, 1))
"""Releases of torch, first and past the last, in which connecting at once (`device_id`) can hang."""


class Connected:
    """One rank, from the environment that its launcher made to a working process group."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.began = time.monotonic()
        self.job, self.plan = job, job["plan"]
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.journal = Journal(job["folder"], self.rank, self.plan["deadline_seconds"])
        self.journal.note(host=socket.gethostname(), local_rank=self.local_rank)

    def left(self) -> float:
        """Seconds until the deadline."""
        return float(self.plan["deadline_seconds"]) - (time.monotonic() - self.began)

    def connect(self) -> None:
        """The stages up to and with the first collectives. Raises whatever ends the rank."""
        self._import()
        self._join()
        self._first()

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

    def _first(self) -> None:
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
        buffers = collectives.Buffers(self.device.device, self.dtype(), size, 1)
        case = collectives.Case(op, size, self.world_group, buffers)
        case.fill()
        return case

    def _try(self, case: collectives.Case) -> bool:
        """Run an operation once. One that the backend lacks is lacking on all ranks."""
        case.step()
        self.device.sync(case.op)
        return True

    def dtype(self) -> torch.dtype:
        """The type of elements that the plan names."""
        chosen: torch.dtype = getattr(self.torch, self.plan["dtype"])
        return chosen
