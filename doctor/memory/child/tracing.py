"""One traced step: which operator and module each allocation of the meter's history belongs to.

A dispatch mode notes between which places of the history every operator ran; it does not look at tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from .engine_sums import called_by_engine
from .events import Events
from .meters import Entry, Meter
from .where import Labelled, Where

aten = torch.ops.aten
BEFORE = "held from before the step"


@dataclass(frozen=True)
class Call:
    """An operator ran while the history's entries `begin` to `end` (exclusive) were made."""

    begin: int
    end: int
    operator: str
    module: int
    left: int = 0
    """Address of the left operand of a sum of gradients that the autograd engine makes."""


class Tracing(Labelled, TorchDispatchMode):  # type: ignore[misc]
    """The dispatch mode."""

    def __init__(self, meter: Meter, events: Events) -> None:
        super().__init__()
        self._meter = meter
        self.where = Where(events)
        self.calls: list[Call] = []
        self.marks: list[tuple[int, str]] = []

    def mark(self, moment: str) -> None:
        """A moment of the training loop begins."""
        self.marks.append((self._meter.position(), moment))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and note where its allocations begin and end."""
        for kind in types:
            if issubclass(kind, DTensor):
                return NotImplemented
        left = 0
        if func is aten.add.Tensor and torch._C._current_graph_task_id() != -1 and called_by_engine():
            left = self._meter.address(args[0])
        begin = self._meter.position()
        out = func(*args, **(kwargs or {}))
        self._called(begin, func._schema.name if hasattr(func, "_schema") else str(func), left)
        return out

    def _called(self, begin: int, operator: str, left: int = 0) -> None:
        end = self._meter.position()
        if end > begin:
            self.calls.append(Call(begin, end, self.label or operator, self.where.now(), left))

    def watch_resizing(self) -> None:
        """FSDP frees and allocates its buffers by resizing storages, which is no operator."""
        real = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            begin = self._meter.position()
            result = real(storage, size)
            self._called(begin, "resize_")
            return result

        torch.UntypedStorage.resize_ = resize_


def merge(
    entries: Sequence[Entry],
    first: int,
    held: int,
    calls: Sequence[Call],
    marks: Sequence[tuple[int, str]],
    events: Events,
) -> None:
    """Write the history as events. `first` is the place of the first entry, `held` the bytes before it.

    A sum of gradients is made in place by the engine, but not while a dispatch mode is active: where the
    left operand dies before the next operator, the sum gets its block.
    """
    living = _from_before(entries, held, events)
    streams: dict[int, int] = {}
    at, next_mark = 0, 0
    for i, entry in enumerate(entries):
        place = first + i
        while next_mark < len(marks) and marks[next_mark][0] <= place:
            events.mark(marks[next_mark][1])
            next_mark += 1
        while at < len(calls) and calls[at].end <= place:
            at += 1
        call = calls[at] if at < len(calls) and calls[at].begin <= place else None
        if entry.freed:
            block = living.pop(entry.address, None)
            if block is not None:
                events.free(block)
            continue
        if call is not None and call.left:
            bound = calls[at + 1].begin if at + 1 < len(calls) else first + len(entries)
            if call.left in living and _freed(entries[call.end - first : bound - first], call.left):
                living[entry.address] = living.pop(call.left)
                continue
        stream = streams.get(entry.stream)
        if stream is None:
            stream = streams[entry.stream] = events.streams.number(f"stream {len(streams)}")
        operator, module = (call.operator, call.module) if call is not None else ("", 0)
        living[entry.address] = events.allocate(entry.size, stream, operator, module, False)
    for _, moment in marks[next_mark:]:
        events.mark(moment)


def _from_before(entries: Sequence[Entry], held: int, events: Events) -> dict[int, int]:
    """Blocks that lived before the history: each that it frees, and all others as one."""
    stream = events.streams.number("stream 0")
    known: set[int] = set()
    living: dict[int, int] = {}
    for entry in entries:
        if entry.freed and entry.address not in known:
            living[entry.address] = events.allocate(entry.size, stream, BEFORE, 0, False)
            held -= entry.size
        known.add(entry.address)
    if held > 0:
        events.allocate(held, stream, BEFORE, 0, False)
    return living


def _freed(entries: Sequence[Entry], address: int) -> bool:
    return any(e.freed and e.address == address for e in entries)
