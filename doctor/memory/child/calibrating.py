"""Measures single calls of operators: what they take, keep and save, and which kernel was chosen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .building import model_of
from .calibrated import ATTENTION
from .calls import read
from .events import Events
from .loading import Refused, no_network, one_line
from .measuring import OutOfMemory
from .meters import Entry, meter
from .recurrent import OPERATORS
from .storages import tensors

BACKENDS = {"Cudnn": "cudnn", "Flash": "flash", "Efficient": "efficient"}
"""By a part of the name of an attention's autograd node; another name is the composite of small operators."""


class Calibrating:
    """A list of calls on the device at hand."""

    def __init__(self, job: dict[str, Any], stage: Any) -> None:
        self.job, self.stage = job, stage
        self.events, self.tracker = Events(), None

    def run(self) -> dict[str, Any]:
        """`entries`, one per call: its figures, or the `problem`. Raises `Refused`."""
        job, stage = self.job, self.stage
        torch.manual_seed(0)
        no_network()
        stage.enter("starting the device")
        self._meter = meter(job["measure"])
        self._meter.start()
        stage.enter("building the model")  # its files register operators of their own
        try:
            model_of(job)
        except Refused as error:
            if error.kind != "model":
                raise
        stage.enter("measuring operators")
        began, limit = time.monotonic(), float(job.get("budget") or 1e9)
        entries: list[dict[str, Any]] = []
        for text in job["signatures"]:
            if time.monotonic() - began > limit:
                entries.append({"signature": text, "problem": "no time left"})
                continue
            try:
                entries.append({"signature": text, **self._one(text)})
            except OutOfMemory:
                entries.append({"signature": text, "problem": "out of memory"})
            except Exception as error:
                said = one_line(f"{type(error).__name__}: {error}")
                entries.append({"signature": text, "problem": said})
            if self._meter.device == "cuda":
                torch.cuda.empty_cache()
        return {"calibrated": {"about": self._meter.about(), "entries": entries}}

    def _one(self, text: str) -> dict[str, Any]:
        """An attention or a recurrent layer is called as a model does; others as autograd calls them."""
        func, args, kwargs = read(text, self._meter.device)
        if func in OPERATORS.values():
            return self._recurrent(func, args)
        whole = func._schema.name == ATTENTION
        with torch.enable_grad() if whole else torch.no_grad():
            before = self._meter.allocated()
            out = func(*args, **kwargs)
            if whole:
                _backward(out, args)
            del out
            kept = self._meter.allocated() - before
            with self._meter.recorded() as entries:
                out = func(*args, **kwargs)
        if whole:  # what it takes is measured where autograd calls the backend
            return {"during": [], "kept": 0, "backend": _backend(out)}
        results = {self._meter.address(t) for t in tensors(out)}
        return {"during": taken(entries, results), "kept": max(0, kept), "backend": None}

    def _recurrent(self, func: Any, args: Any) -> dict[str, Any]:
        """The second of two calls: what a handle keeps is there by then."""
        for _ in range(2):
            with self._meter.recorded() as forward:
                out = func(*args)
            results = {self._meter.address(t) for t in tensors(out)}
            grad = torch.zeros_like(out[0])
            with self._meter.recorded() as backward:
                out[0].backward(grad)
            del out, grad
            for t in tensors(args):
                t.grad = None
        weights = sum(t.numel() * t.element_size() for t in args[2])
        stays = [size for address, size in left(forward).items() if address not in results]
        if weights in stays:  # they are copied into one piece
            stays.remove(weights)
        spaces = [max(passing(entries), default=0) for entries in (forward, backward)]
        return {"during": spaces, "kept": max(stays, default=0), "backend": None}


def left(entries: Iterable[Entry]) -> dict[int, int]:
    """Sizes by address of what was allocated and is there at the end."""
    living: dict[int, int] = {}
    for e in entries:
        if e.freed:
            living.pop(e.address, None)
        else:
            living[e.address] = e.size
    return living


def passing(entries: Iterable[Entry]) -> list[int]:
    """Sizes of what was allocated and freed."""
    living: dict[int, int] = {}
    gone: list[int] = []
    for e in entries:
        if not e.freed:
            living[e.address] = e.size
        elif e.address in living:
            gone.append(living.pop(e.address))
    return gone


def taken(entries: Iterable[Entry], results: Iterable[int]) -> list[int]:
    """Sizes of the blocks besides the results that live at a call's highest moment."""
    given = frozenset(results)
    living: dict[int, int] = {}
    now = top = 0
    peak: dict[int, int] = {}
    for e in entries:
        if e.freed:
            now -= living.pop(e.address, 0)
            continue
        living[e.address] = e.size
        now += e.size
        if now > top:
            top, peak = now, dict(living)
    passing = [size for address, size in peak.items() if address not in given]
    missing = sum(size for address, size in living.items() if address in given and address not in peak)
    return _less(passing, missing)


def _less(sizes: Sequence[int], bytes_: int) -> list[int]:
    """The sizes without so many bytes: results that are made after the peak do not add to it."""
    left = sorted(sizes, reverse=True)
    for i, size in enumerate(left):
        cut = min(size, bytes_)
        left[i] -= cut
        bytes_ -= cut
    return [size for size in left if size]


def _backward(out: torch.Tensor, args: Any) -> None:
    """Let library handles keep what they will; no gradient stays."""
    if out.requires_grad:
        out.backward(torch.zeros_like(out))
        for t in tensors(args):
            t.grad = None


def _backend(out: torch.Tensor) -> str:
    node = type(out.grad_fn).__name__ if out.grad_fn is not None else ""
    return next((name for part, name in BACKENDS.items() if part in node), "math" if node else "")
