"""What depends on timing and not on the program's order: bounds beside the figures.

NCCL keeps the tensors of a collective until its watchdog has seen it end and another collective is called.
DDP lays out its buckets anew before the second step, and the first ones may so live through that step's
backward: they did in 4 of 22 measured runs, in two of four models, and in some runs of a model only.

FSDP1's blocks that another stream used come back when an event behind them is found done. Where the GPU keeps
up with the host that is at once; where it lags behind, the host's rate limiter bounds it, but for the streams
that reduce gradients. Ranks that shared a GPU, and so were slow to reduce, held what these rules say.
"""

from __future__ import annotations

from fsdp_doctor.memory.events import ALLOCATE, BUCKETS, FREE, MARK, USED, EventList
from fsdp_doctor.memory.lag import LAUNCHES, Lag
from fsdp_doctor.memory.simulate import Run, simulate

ORDER = 0.005
"""Part of the reserved memory, up and down, that the order of allocations inside operators decides.

It is no part of the replay. Of 148 measured FSDP2 cases, where timing decides nothing, 137 lie within it.
"""
LAGS = (Lag(64), Lag(LAUNCHES, reduces=True))
"""Beside none at all: what a GPU was about behind its host in runs without collectives, and the most: a full
queue, and collectives that last until the end of backward."""


def reserved(events: EventList, run: Run) -> tuple[int, int]:
    """The lowest and the highest figure of `torch.cuda.max_memory_reserved`, in bytes.

    `run` is the simulation of the events, which had better hold a third step (`later`): in 9 of 222 measured
    cases more was held in it than in the second, and in none more in the three steps behind it.
    """
    figures = [run.reserved_peak]
    if USED in events.kinds:
        figures += [simulate(events, lag=lag).reserved_peak for lag in LAGS]
    replaced = _replaced(events)
    if replaced:
        figures.append(simulate(_moved(events, *replaced)).reserved_peak)
    return int(min(figures) * (1 - ORDER)), int(max(figures) * (1 + ORDER))


def late_buckets(events: EventList) -> int:
    """The peak where DDP's first buckets live through the step in which they are replaced; else 0."""
    replaced = _replaced(events)
    return simulate(_moved(events, *replaced)).peak if replaced else 0


def _replaced(events: EventList) -> tuple[set[int], int] | None:
    """The buckets that were freed in a forward, and the row of the end of the step behind it."""
    buckets: set[int] = set()
    freed: set[int] = set()
    for row, (kind, block, _, _, operator, _) in enumerate(events.rows()):
        if kind == ALLOCATE and events.operator_names[operator] == BUCKETS:
            buckets.add(block)
        elif kind == FREE and block in buckets:
            freed.add(block)
        elif kind == MARK and freed and events.operator_names[operator] in ("after optimizer", "end of step"):
            return freed, row
    return None


def _moved(events: EventList, blocks: set[int], to: int) -> EventList:
    """The events with the frees of some blocks moved down to a row."""
    kinds, numbers = events.kinds, events.blocks
    moved = [i for i in range(to) if kinds[i] == FREE and numbers[i] in blocks]
    gone = set(moved)
    order = [*(i for i in range(to) if i not in gone), *moved, *range(to, len(kinds))]
    return events.of_rows(order)
