"""DistributedDataParallel by its rules: its reducer is C++ and works on real gradients only.

The reducer keeps all gradients a second time in buckets: in the first iteration one bucket for each dtype, and from
the second iteration on buckets of a size, in the order in which gradients came.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from .tracker import Tracker

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes; torch's own defaults."""


class DataParallel:
    """The reducer's memory for a model."""

    def __init__(self, model: torch.nn.Module, tracker: Tracker) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._tracker = tracker
        self._ready: list[Any] = []
        self._rebuilt = False
        self._buckets: list[Any] = []
        self._lay_out(self._parameters, [sys.maxsize])
        for p in self._parameters:
            p.register_post_accumulate_grad_hook(self._ready.append)

    def before_forward(self) -> None:
        """The second iteration finds the buckets in the order of the gradients."""
        if not self._rebuilt and self._ready:
            self._rebuilt = True
            order = list(dict.fromkeys(self._ready))
            rest = [p for p in self._parameters if not any(p is o for o in order)]
            self._lay_out(order + rest, [FIRST_BUCKET, BUCKET])
        self._ready.clear()

    def _lay_out(self, parameters: list[Any], limits: list[int]) -> None:
        before, self._tracker.label = self._tracker.label, "ddp: gradient buckets"
        try:
            with torch._C._DisableTorchDispatch():
                shapes = [torch.empty(p.shape, dtype=p.dtype, device="meta") for p in parameters]
            groups, _ = dist._compute_bucket_assignment_by_size(shapes, limits, [])
            self._buckets.clear()
            for group in groups:
                n = sum(parameters[i].numel() for i in group)
                self._buckets.append(torch.empty(n, dtype=parameters[group[0]].dtype))
        finally:
            self._tracker.label = before
