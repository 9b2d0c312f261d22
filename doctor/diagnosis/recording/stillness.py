"""When a job counts as hanging: no output for a while, and ranks that stand still at look after look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from fsdp_doctor.subjects.stacks import COLLECTIVE, DATA, GPU, LOCK, LiveJob, RankProcess

LOOKS = 2
"""Further looks that must find the ranks where the first one found them."""
BETWEEN = 0.1
"""Of the quiet time, between looks: 12 s of 120 s."""
AGAIN = 2.0
"""A hang that goes on is looked at again after twice the time, and so on."""
REPORTS = 4
GAP = 30.0
"""Seconds between two ticks that mean that this process itself was stopped: then nothing is known."""


class Step(Enum):
    """What to do now."""

    WAIT = "wait"
    LOOK = "look"


@dataclass(slots=True)
class Stillness:
    """Fed with ticks and looks; pure but for its own state. Times are seconds of a monotonic clock."""

    patience: float
    """Seconds without output after which a look is worth its while."""
    now: float
    output: int = 0
    since: float = field(init=False)
    due: float = field(init=False)
    reports: int = 0
    seen: tuple[object, ...] = ()
    same: int = 0
    excused: float = -1.0
    """Until then output is no sign of life: ranks say something when they are asked for their recorders."""

    def __post_init__(self) -> None:
        """The quiet begins now."""
        self.since, self.due = self.now, self.now + self.patience

    def tick(self, now: float, output: int) -> Step:
        """A moment passed; `output` counts the bytes of output so far."""
        gap, self.now = now - self.now, now
        if now <= self.excused:
            self.output = output
        if output != self.output or gap > GAP:
            self.output = output
            self._begin(now)
            return Step.WAIT
        return Step.LOOK if now >= self.due and self.reports < REPORTS else Step.WAIT

    def excuse(self, until: float) -> None:
        """Output up to that time is the answer to a question, and not progress."""
        self.excused = until

    @property
    def quiet(self) -> float:
        """Seconds since the last output."""
        return self.now - self.since

    def looked(self, job: LiveJob | None, now: float) -> bool:
        """A look was taken: whether it makes the job one that hangs. None: there was no rank to look at."""
        self.now = now
        places = _places(job.processes) if job is not None else ()
        if not places:
            self.due = now + self.patience
            return False
        if places != self.seen:
            self.seen, self.same = places, 0
        else:
            self.same += 1
        if self.same < LOOKS:
            self.due = now + max(self.patience * BETWEEN, 1.0)
            return False
        self.reports += 1
        self.same = 0
        self.due = now + self.patience * AGAIN**self.reports
        return True

    def _begin(self, now: float) -> None:
        self.since, self.due = now, now + self.patience
        self.reports, self.seen, self.same = 0, (), 0


def _places(processes: Sequence[RankProcess]) -> tuple[object, ...]:
    """Where the ranks that wait stand; those that move in their own code are what they wait for.

    Nothing where nobody waits: ranks that all compute do not hang.
    """
    found: list[object] = []
    still = False
    for process in processes:
        if process.state in ("T", "t", "D"):
            found.append((process.pid, process.state))
            still = True
        elif process.place is None or not process.threads:
            found.append((process.pid, None))
        elif process.place.kind in (COLLECTIVE, GPU, LOCK, DATA):
            main = next((t for t in process.threads if t.main), process.threads[0])
            user = tuple((f.function, f.file, f.line) for f in main.frames)
            found.append((process.pid, user))
            still = True
        else:
            found.append((process.pid, "own code"))
    return tuple(found) if still else ()
