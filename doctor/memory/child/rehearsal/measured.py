"""The meter on a GPU: real tensors, and what torch.cuda counts in each phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import device_memory
from . import host, node, reducer
from .notes import Notes
from .steps import Steps


@dataclass(frozen=True)
class Before:
    """What others use of the GPUs, by UUID, before this process uses any."""

    used: Mapping[str, int] = field(default_factory=device_memory.used)
    processes: Mapping[str, Mapping[int, int]] = field(default_factory=device_memory.processes)


class Measured:
    """One row per phase: peaks, what is left, seconds."""

    def __init__(self, notes: Notes, before: Before, ranks: int) -> None:
        self._notes, self._before_all, self._ranks = notes, before, ranks
        self._rows: list[dict[str, Any]] = []
        self._name, self._began = "init", time.monotonic()
        self._before = 0
        self.node: node.Node | None = None
        torch.cuda.set_device(0)
        torch.cuda.init()
        one = torch.cuda.get_device_properties(0)
        self._uuid = str(getattr(one, "uuid", ""))
        self._about = {
            "name": one.name,
            "total": torch.cuda.mem_get_info(0)[1],
            "torch": str(torch.__version__),
        }
        self._first = self._outside()

    def install(self, steps: Steps) -> None:
        """Loaders tell of themselves; DDP's reducer and questions about other ranks' GPUs are answered."""
        host.loaders(steps, self._notes, pin=True)
        reducer.install()
        self.node = node.install(self._notes, self._ranks)

    def mark(self, moment: str) -> None:
        """Close the phase that was, and begin another."""
        torch.cuda.synchronize(0)
        now = time.monotonic()
        self._rows.append(
            {
                "name": self._name,
                "before": self._before,
                "peak": torch.cuda.max_memory_allocated(0),
                "after": torch.cuda.memory_allocated(0),
                "reserved": torch.cuda.max_memory_reserved(0),
                "seconds": now - self._began,
            }
        )
        torch.cuda.reset_peak_memory_stats(0)
        self._name, self._began = moment, time.monotonic()
        self._before = torch.cuda.memory_allocated(0)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the script runs."""
        yield

    def result(self, folder: str) -> dict[str, object]:
        """All rows, and what the process takes outside of torch's blocks; less once the device has failed."""
        found: dict[str, object] = {**self._about, "phases": self._rows, "outside": self._first}
        try:
            self.mark("end")
            found["outside"] = max(self._first, self._outside())
            found["workspaces"] = _workspaces()
        except RuntimeError as error:
            found["lost"] = str(error).splitlines()[0]
        return found

    def _outside(self) -> int:
        """Bytes of this process outside of the allocator: its context, modules and libraries."""
        reserved = torch.cuda.memory_reserved(0)
        mine = device_memory.own(
            self._before_all.processes, device_memory.processes(), self._uuid, os.getpid()
        )
        if mine is None:
            free, total = torch.cuda.mem_get_info(0)
            mine = total - free - (device_memory.of(self._before_all.used, self._uuid) or 0)
        return max(0, int(mine - reserved))


def _workspaces() -> int:
    """Bytes of the allocator that cuBLAS keeps: one workspace per handle and stream, until it is told."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        return 0
    held = torch.cuda.memory_allocated(0)
    clear()
    return int(held - torch.cuda.memory_allocated(0))
