"""The meter on a GPU: real tensors, and what torch.cuda counts in each phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import host
from .notes import Notes
from .steps import Steps


class Measured:
    """One row per phase: peaks, what is left, seconds."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._rows: list[dict[str, Any]] = []
        self._name, self._began = "init", time.monotonic()
        self._before = 0
        torch.cuda.set_device(0)
        torch.cuda.init()
        free, total = torch.cuda.mem_get_info(0)
        self._total = total
        self._outside = total - free - torch.cuda.memory_reserved(0)

    def install(self, steps: Steps) -> None:
        """Only the loaders tell of themselves; everything else is real."""
        host.loaders(steps, self._notes, pin=True)

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
        """All rows, and what the process takes outside of torch's blocks."""
        self.mark("end")
        free, total = torch.cuda.mem_get_info(0)
        name = torch.cuda.get_device_name(0)
        return {
            "phases": self._rows,
            "outside": max(self._outside, total - free - torch.cuda.memory_reserved(0)),
            "total": total,
            "name": name,
            "torch": torch.__version__,
        }
