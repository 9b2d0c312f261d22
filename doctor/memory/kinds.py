"""What a tensor is, by the phase in which it was made and how long it stays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.memory.events import FREE, MARK, EventList
from fsdp_doctor.memory.simulate import Living

PARAMETERS, OPTIMIZER, GRADIENTS, BUFFERS = "parameters", "optimizer state", "gradients", "FSDP buffers"
ACTIVATIONS, TEMPORARIES, BATCH, WORKSPACES = "activations", "temporaries", "batch", "workspaces"
BUCKETS, UNREDUCED = "DDP buckets", "unsharded gradients"


@dataclass(frozen=True, slots=True)
class Context:
    """In which phase of which step each row falls."""

    starts: tuple[int, ...]
    names: tuple[str, ...]
    step_of: tuple[int, ...]

    def at(self, row: int) -> tuple[int, str]:
        """Step (0 before the first) and phase."""
        i = self.number(row)
        return (self.step_of[i], self.names[i]) if i >= 0 else (0, "start")

    def number(self, row: int) -> int:
        """Which phase of all; -1 before the first."""
        return bisect_right(self.starts, row) - 1


def context(events: EventList) -> Context:
    """The phases of an event list."""
    starts: list[int] = []
    names: list[str] = []
    numbers: list[int] = []
    step = 0
    for row, (kind, _, _, _, operator, _) in enumerate(events.rows()):
        if kind == MARK:
            name = events.operator_names[operator]
            if name.startswith("step "):
                step = int(name[5:])
            starts.append(row)
            names.append(name)
            numbers.append(step)
    return Context(tuple(starts), tuple(names), tuple(numbers))


def kinds_of(
    events: EventList, held: Iterable[Living], when: Context, at: int, unreduced: bool
) -> dict[int, str]:
    """What each living block is, by when it was made and how long it stays.

    `unreduced`: gradients of earlier microbatches are there whole until the last one's backward.
    """
    ends = _ends(events, at)
    found: dict[int, str] = {}
    for b in held:
        step, phase = when.at(b.row)
        end = ends.get(b.block)
        end_step, end_phase = when.at(end) if end is not None else (99, "end")
        stays = (
            end is None
            or (end_step, end_phase) in ((step, "after optimizer"), (step, "optimizer"))
            or end_step > step
        )
        whole = (
            unreduced
            and phase == end_phase == "backward"
            and step == end_step
            and end is not None
            and when.number(b.row) != when.number(end)
        )
        if whole:
            found[b.block] = UNREDUCED
        elif b.operator.startswith(("fsdp:", "ddp:")):
            buffers = BUFFERS if b.operator.startswith("fsdp:") else BUCKETS
            found[b.block] = buffers if not (stays and phase == "backward") else GRADIENTS
        elif b.operator.startswith("optimizer:"):
            found[b.block] = OPTIMIZER
        elif b.operator.endswith(" workspace"):
            found[b.block] = WORKSPACES
        elif phase == "init":
            found[b.block] = PARAMETERS
        elif phase == "batch":
            found[b.block] = BATCH
        elif phase == "optimizer":
            found[b.block] = OPTIMIZER if end is None or end_step > step else TEMPORARIES
        elif phase == "backward":
            found[b.block] = GRADIENTS if stays else TEMPORARIES
        elif phase == "forward":
            later = end is None or end_step > step or end_phase != "forward"
            found[b.block] = ACTIVATIONS if later else TEMPORARIES
        else:
            found[b.block] = TEMPORARIES
    return found


def _ends(events: EventList, at: int) -> dict[int, int]:
    return {
        block: row for row, (kind, block, _, _, _, _) in enumerate(events.rows()) if kind == FREE and row > at
    }
