"""What depends on timing and not on the program's order: bounds beside the figures.

NCCL keeps the tensors of a collective until its watchdog has seen it end and another collective is called.
DDP lays out its buckets anew before the second step, and the first ones may so live through that step's
backward: seen in one of four measured cases. FSDP1's blocks that another stream used come back when an event
behind them is found done: at the earliest at once, at the latest some waits of the host later.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from fsdp_doctor.memory.events import ALLOCATE, FREE, MARK, EventList
from fsdp_doctor.memory.simulate import Run, simulate

BUCKETS = "ddp: gradient buckets"


def reserved(events: EventList, run: Run) -> tuple[int, int]:
    """The lowest and the highest figure of `torch.cuda.max_memory_reserved`, in bytes."""
    late = simulate(events, deferred=True)
    return run.reserved_peak, max(run.reserved_peak, late.reserved_peak)


def late_buckets(events: EventList) -> int:
    """The peak where DDP's first buckets live through the backward in which they are replaced; else 0."""
    replaced = _replaced(events)
    return simulate(_moved(events, *replaced)).peak if replaced else 0


def _replaced(events: EventList) -> tuple[set[int], int] | None:
    """The buckets that were freed in a forward, and the row of the end of the backward behind it."""
    buckets: set[int] = set()
    freed: set[int] = set()
    for row, (kind, block, _, _, operator, _) in enumerate(events.rows()):
        if kind == ALLOCATE and events.operator_names[operator] == BUCKETS:
            buckets.add(block)
        elif kind == FREE and block in buckets:
            freed.add(block)
        elif kind == MARK and freed and events.operator_names[operator] in ("clip", "after backward"):
            return freed, row
    return None


def _moved(events: EventList, blocks: set[int], to: int) -> EventList:
    """The events with the frees of some blocks moved down to a row."""
    kinds, numbers = events.kinds, events.blocks
    moved = [i for i in range(to) if kinds[i] == FREE and numbers[i] in blocks]
    gone = set(moved)
    order = [*(i for i in range(to) if i not in gone), *moved, *range(to, len(kinds))]

    def column(values: array[int]) -> array[int]:
        return array(values.typecode, [values[i] for i in order])

    return replace(
        events,
        kinds=column(events.kinds),
        blocks=column(events.blocks),
        sizes=column(events.sizes),
        streams=column(events.streams),
        operators=column(events.operators),
        modules=column(events.modules),
    )
