"""One more step than was replayed: the last one over again, on blocks of its own.

From the second step on a training loop repeats itself, but the allocator's free blocks do not lie as before:
what it holds may still grow for a step. Where the step frees a block from before it, the step after it frees
the block of the same size that this one left behind. DDP lays out its buckets once: that is not done again.
"""

from __future__ import annotations

from array import array
from collections import deque

from fsdp_doctor.memory.events import (
    ALLOCATE,
    BUCKETS,
    FREE,
    HOST_ALLOCATE,
    HOST_FREE,
    MARK,
    USED,
    WAITED,
    EventList,
)


def with_another(events: EventList) -> EventList:
    """The events up to the end of the last step and that step again; as they are where it does not repeat."""
    bounds = _last(events)
    if bounds is None:
        return events
    start, end = bounds
    once = _once(events)
    before = _handed_on(events, start, end, once)
    if before is None:
        return events
    kinds, blocks, sizes = events.kinds[:end], events.blocks[:end], events.sizes[:end]
    number, made = events.block_count, {}
    for row in range(start, end):
        kind, block, size = events.kinds[row], events.blocks[row], events.sizes[row]
        if block in once:
            kind, block, size = WAITED, -1, 0
        elif kind in (ALLOCATE, HOST_ALLOCATE):
            made[block], block, number = number, number, number + 1
        elif kind in (FREE, HOST_FREE, USED):
            block = made.get(block, before.get(block, block))
        elif kind == WAITED:
            size += end - start
        kinds.append(kind)
        blocks.append(block)
        sizes.append(size)

    def twice(column: array[int]) -> array[int]:
        return column[:end] + column[start:end]

    streams, operators, modules = twice(events.streams), twice(events.operators), twice(events.modules)
    names = (events.operator_names, events.module_names)
    return EventList(kinds, blocks, sizes, streams, operators, modules, *names, number)


def _last(events: EventList) -> tuple[int, int] | None:
    """The rows from the last step's first mark to its last."""
    start = end = None
    for row, kind in enumerate(events.kinds):
        if kind == MARK:
            name = events.operator_names[events.operators[row]]
            if name.startswith("step "):
                start, end = row, None
            elif name == "end of step":
                end = row
    return (start, end) if start is not None and end is not None else None


def _once(events: EventList) -> set[int]:
    """Blocks that no further step makes."""
    operators = {i for i, name in enumerate(events.operator_names) if name == BUCKETS}
    return {
        block
        for kind, block, operator in zip(events.kinds, events.blocks, events.operators, strict=True)
        if kind == ALLOCATE and operator in operators
    }


def _handed_on(events: EventList, start: int, end: int, once: set[int]) -> dict[int, int] | None:
    """For each block from before the step that it frees, the one that it leaves in its place."""
    freed: list[int] = []
    made: dict[int, int] = {}
    for row in range(start, end):
        kind, block = events.kinds[row], events.blocks[row]
        if block in once:
            continue
        if kind in (ALLOCATE, HOST_ALLOCATE):
            made[block] = events.sizes[row]
        elif kind in (FREE, HOST_FREE) and made.pop(block, None) is None:
            freed.append(block)
    size_of = {
        events.blocks[row]: events.sizes[row]
        for row in range(start)
        if events.kinds[row] in (ALLOCATE, HOST_ALLOCATE)
    }
    left: dict[int, deque[int]] = {}
    for block, size in made.items():
        left.setdefault(size, deque()).append(block)
    found: dict[int, int] = {}
    for block in sorted(freed):
        waiting = left.get(size_of.get(block, -1))
        if not waiting:
            return None
        found[block] = waiting.popleft()
    return None if any(left.values()) else found
