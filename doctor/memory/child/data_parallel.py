"""DistributedDataParallel by its rules: its reducer is C++ and works on real gradients only.

The reducer keeps all gradients a second time in buckets: in the first iteration one bucket for each dtype,
and later buckets of a size, in the order in which gradients came. With `gradient_as_bucket_view` a gradient
becomes a part of its bucket as soon as it is copied there.

What ranks must agree on is copied together and broadcast: parameters and buffers when the model is wrapped,
buffers again before a forward. These copies are no peak, but the allocator keeps their segments.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from . import used
from .tracker import Tracker

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes; torch's own defaults."""
BROADCAST, IN_FLIGHT = 250 << 20, 2
"""Bytes of tensors that are broadcast together, and how many of such copies there are at a time."""
UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one: "
    "find_unused_parameters=True allows parameters without a gradient"
)
LISTED = 4
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
        self._model, self._tracker = model, tracker
        self._views = bool(given.get("gradient_as_bucket_view"))
        static = bool(given.get("static_graph"))
        unused = bool(given.get("find_unused_parameters")) and not static
        cap = int(float(given["bucket_cap_mb"]) * (1 << 20)) if given.get("bucket_cap_mb") else BUCKET
        self._limits = [cap if given.get("bucket_cap_mb") else FIRST_BUCKET, cap]
        self._ready: list[Any] = []
        self._all_may_miss = unused or static
        self._rebuilt = unused  # torch lays buckets out anew only where it expects every gradient
        self._sync, self._learning, self._queued = True, static, False
        self._agreed = False
        """Whether the next forward sends no buffers: those after one without reduction do not."""
        self._buckets: list[Any] = []
        self._places: dict[int, Any] = {}
        self._broadcast([*model.parameters(), *model.buffers()])
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
        """The iteration after the first whose order is known finds the buckets in that order.

        Raises what torch raises where the one before left gradients out that are waited for.
        """
        if self._ready and not self._all_may_miss:
            self._complete()
        if not self._rebuilt and self._ready:
            self._rebuilt = True
            order = list(dict.fromkeys(self._ready))
            rest = [p for p in self._parameters if not any(p is o for o in order)]
            self._lay_out(order + rest, self._limits)
        self._ready.clear()
        if not self._agreed:
            self._broadcast(list(self._model.buffers()))
        self._agreed = not self._sync

    def _complete(self) -> None:
        came = {id(p) for p in self._ready}
        absent = [n for n, p in self._model.named_parameters() if p.requires_grad and id(p) not in came]
        if absent:
            more = f" and {len(absent) - LISTED} more" if len(absent) > LISTED else ""
            raise RuntimeError(f"{UNFINISHED}: {', '.join(absent[:LISTED])}{more}")

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

    def _broadcast(self, tensors: Sequence[Any]) -> None:
        """The copies in which torch sends tensors; one that is sent alone is not copied."""
        before, self._tracker.label = self._tracker.label, "ddp: broadcast"
        flying: deque[Any] = deque()
        try:
            for group in _groups(tensors, [BROADCAST]):
                some = [tensors[i] for i in group]
                if len(flying) == IN_FLIGHT:
                    flying.popleft()
                n = sum(t.numel() for t in some)
                flying.append(_empty(n, some[0]) if len(some) > 1 else None)
        finally:
            while flying:
                flying.popleft()
            self._tracker.label = before

    def _lay_out(self, parameters: list[Any], limits: list[int]) -> None:
        before, self._tracker.label = self._tracker.label, "ddp: gradient buckets"
        try:
            self._buckets.clear()
            self._places.clear()
            for group in _groups(parameters, limits):
                bucket = _empty(sum(parameters[i].numel() for i in group), parameters[group[0]])
                self._buckets.append(bucket)
                if self._views:
                    parts = bucket.split([parameters[i].numel() for i in group])
                    for i, part in zip(group, parts, strict=True):
                        self._places[id(parameters[i])] = part.view(parameters[i].shape)
        finally:
            self._tracker.label = before


def _groups(tensors: Sequence[Any], limits: list[int]) -> list[list[int]]:
    """Which tensors torch puts together, for limits of the first and of the further groups in bytes."""
    with torch._C._DisableTorchDispatch():
        shapes = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
    return dist._compute_bucket_assignment_by_size(shapes, limits, [])[0] if shapes else []


def _empty(elements: int, like: Any) -> Any:
    return torch.empty(elements, dtype=like.dtype, device=like.device)
