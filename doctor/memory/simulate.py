"""From events to what the allocator would count: peaks by phase, and what lives at the highest one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fsdp_doctor.memory.allocator import Allocator, Block
from fsdp_doctor.memory.events import (
    ALLOCATE,
    FREE,
    HOST_ALLOCATE,
    HOST_FREE,
    MARK,
    USED,
    WAITED,
    EventList,
)
from fsdp_doctor.memory.host import HostMemory
from fsdp_doctor.memory.lag import Behind, Lag


@dataclass(slots=True)
class Phase:
    """From one mark to the next. All bytes are the allocator's blocks."""

    name: str
    first: int
    """The number of the mark's row."""
    before: int
    peak: int = 0
    peak_row: int = 0
    after: int = 0
    reserved: int = 0


@dataclass(slots=True)
class Run:
    """One pass over the events."""

    phases: list[Phase] = field(default_factory=list)
    peak: int = 0
    peak_row: int = 0
    reserved_peak: int = 0
    host: HostMemory = field(default_factory=HostMemory)


def simulate(
    events: EventList, *, expandable: bool = False, lag: Lag | None = None, until: int | None = None
) -> Run:
    """Let the allocator serve the events.

    A block that other streams used may be handed out again when events behind its last uses are found done:
    at once where the GPU keeps up (no `lag`). What is allocated is taken from that variant.
    """
    allocator = Allocator(expandable)
    counters = allocator.counters
    run = Run()
    blocks: dict[int, Block] = {}
    used: dict[int, set[int]] = {}
    behind = Behind(events, lag, allocator.reuse) if lag is not None else None
    phase = Phase("start", 0, 0)
    run.phases.append(phase)
    for row, (kind, block, size, stream, operator, _) in enumerate(events.rows()):
        if kind == ALLOCATE:
            if behind is not None:
                behind.launch()
            blocks[block] = allocator.allocate(size, stream)
            if counters.allocated > phase.peak:
                phase.peak, phase.peak_row = counters.allocated, row
                if counters.allocated > run.peak:
                    run.peak, run.peak_row = counters.allocated, row
        elif kind == FREE:
            freed = blocks.pop(block)
            allocator.count_freed(freed)
            users = used.pop(block, None)
            if users and behind is not None:
                behind.free(freed, users, row)
            else:
                allocator.reuse(freed)
        elif kind == USED:
            if blocks[block].stream != stream:
                used.setdefault(block, set()).add(stream)
        elif kind == WAITED:
            if behind is not None:
                behind.wait(stream, size)
        elif kind == MARK:
            phase.after, phase.reserved = counters.allocated, counters.reserved_peak
            phase = Phase(events.operator_names[operator], row, counters.allocated, counters.allocated, row)
            run.phases.append(phase)
            if behind is not None:
                behind.mark(phase.name, row)
        elif kind == HOST_ALLOCATE:
            run.host.allocate(block, size, stream)
        elif kind == HOST_FREE:
            run.host.free(block)
        if until is not None and row >= until:
            break
    phase.after, phase.reserved = counters.allocated, counters.reserved_peak
    run.reserved_peak = counters.reserved_peak
    return run


@dataclass(frozen=True, slots=True)
class Living:
    """One block that lives at a moment."""

    block: int
    row: int
    """Of its allocation."""
    size: int
    operator: str
    module: str


def living(events: EventList, at: int) -> tuple[Living, ...]:
    """The blocks on the GPU right after an event, in the order in which they were allocated."""
    alive: dict[int, Living] = {}
    for row, (kind, block, size, _, operator, module) in enumerate(events.rows()):
        if row > at:
            break
        if kind == ALLOCATE:
            alive[block] = Living(
                block, row, size, events.operator_names[operator], events.module_names[module]
            )
        elif kind == FREE:
            alive.pop(block, None)
    return tuple(alive.values())


@dataclass(frozen=True, slots=True)
class Step:
    """What `measure` notes of one optimizer step, in bytes of blocks."""

    fwd_bwd_peak: int
    after_backward: int
    opt_peak: int


def steps(phases: Iterable[Phase]) -> tuple[Step, ...]:
    """The steps of a run."""
    found: list[Step] = []
    current: list[Phase] = []

    def close() -> None:
        if current:
            work = [p for p in current if p.name in ("forward", "backward") or p.name.startswith("step")]
            last = [p for p in current if p.name == "backward"]
            optimizer = [p for p in current if p.name == "optimizer"]
            if work and last and optimizer:
                found.append(Step(max(p.peak for p in work), last[-1].after, optimizer[-1].peak))
            current.clear()

    for phase in phases:
        if phase.name.startswith("step "):
            close()
            current.append(phase)
        elif current:
            current.append(phase)
    close()
    return tuple(found)
