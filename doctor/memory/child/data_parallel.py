"""DistributedDataParallel by its rules: its reducer is C++ and works on real gradients only.

The reducer keeps all gradients a second time in buckets: in the first iteration one bucket for each dtype,
and later buckets of a size, in the order in which gradients came. With `gradient_as_bucket_view` a gradient
becomes a part of its bucket as soon as it is copied there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from . import used
from .tracker import Tracker

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes; torch's own defaults."""
OPTIONS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")


def options(job: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of DistributedDataParallel that a job names."""
    return {name: job[name] for name in OPTIONS if job.get(name)}


class DataParallel:
    """The reducer's memory for a model. `given` are arguments of DistributedDataParallel."""

    def __init__(
        self, model: torch.nn.Module, tracker: Tracker, given: Mapping[str, Any] | None = None
    ) -> None:
        used.note("ddp")
        given = given or {}
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._tracker = tracker
        self._views = bool(given.get("gradient_as_bucket_view"))
        static = bool(given.get("static_graph"))
        unused = bool(given.get("find_unused_parameters")) and not static
        cap = int(float(given["bucket_cap_mb"]) * (1 << 20)) if given.get("bucket_cap_mb") else BUCKET
        self._limits = [cap if given.get("bucket_cap_mb") else FIRST_BUCKET, cap]
        self._ready: list[Any] = []
        self._rebuilt = unused  # torch lays buckets out anew only where it expects every gradient
        self._sync, self._learning, self._queued = True, static, False
        self._buckets: list[Any] = []
        self._places: dict[int, Any] = {}
        self._lay_out(self._parameters, self._limits if unused else [sys.maxsize])
        for p in self._parameters:
            p.register_post_accumulate_grad_hook(self._came)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients stay as they are."""
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def before_forward(self) -> None:
        """The iteration after the first whose order is known finds the buckets in that order."""
        if not self._rebuilt and self._ready:
            self._rebuilt = True
            order = list(dict.fromkeys(self._ready))
            rest = [p for p in self._parameters if not any(p is o for o in order)]
            self._lay_out(order + rest, self._limits)
        self._ready.clear()

    def _came(self, parameter: Any) -> None:
        if not self._sync:
            return
        if not self._learning:
            self._copy(parameter)
            self._ready.append(parameter)
        elif not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._all)

    def _all(self) -> None:
        """The first iteration of a static graph learns what takes part: all are copied at its end."""
        self._learning = False
        for p in self._parameters:
            if p.grad is not None:
                self._copy(p)

    def _copy(self, parameter: Any) -> None:
        if self._views:
            parameter.grad = self._places[id(parameter)]

    def _lay_out(self, parameters: list[Any], limits: list[int]) -> None:
        before, self._tracker.label = self._tracker.label, "ddp: gradient buckets"
        try:
            with torch._C._DisableTorchDispatch():
                shapes = [torch.empty(p.shape, dtype=p.dtype, device="meta") for p in parameters]
            groups, _ = dist._compute_bucket_assignment_by_size(shapes, limits, [])
            self._buckets.clear()
            self._places.clear()
            for group in groups:
                n = sum(parameters[i].numel() for i in group)
                like = parameters[group[0]]
                bucket = torch.empty(n, dtype=like.dtype, device=like.device)
                self._buckets.append(bucket)
                if self._views:
                    parts = bucket.split([parameters[i].numel() for i in group])
                    for i, part in zip(group, parts, strict=True):
                        self._places[id(parameters[i])] = part.view(parameters[i].shape)
        finally:
            self._tracker.label = before
