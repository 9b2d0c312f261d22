"""One attempt of an incident, with the questions that all ways to a culprit ask of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.lines import (
    OF_THE_LAUNCHER,
    PEER_LOST,
    TOLD_TO_STOP,
    WAITED,
    WATCHDOG_FAILED,
)
from fsdp_doctor.diagnosis.culprit.signals import SIGKILL, SIGTERM, signal_of
from fsdp_doctor.subjects.incident import (
    LIKELY,
    ROOT,
    VICTIM,
    Exit,
    Frame,
    Hit,
    Incident,
    LastLine,
    StepPoint,
)

TAIL = 25
"""Lines at the end of a file that count as its end."""
QUOTED = 200


@dataclass(frozen=True)
class View:
    """The evidence of one attempt."""

    incident: Incident
    attempt: int = 0
    hits: tuple[Hit, ...] = ()
    exits: tuple[Exit, ...] = ()

    @cached_property
    def world(self) -> int | None:
        """Ranks that should be there."""
        return self.incident.job.world_size

    @cached_property
    def ranks(self) -> frozenset[int]:
        """Ranks that any line or exit names."""
        return frozenset(self.incident.job.ranks_seen)

    @cached_property
    def expected(self) -> frozenset[int]:
        """Ranks that should be there, as numbers."""
        return frozenset(range(self.world)) if self.world and self.world <= 1 << 16 else self.ranks

    @cached_property
    def waited(self) -> frozenset[int]:
        """Ranks that said they waited until a timeout; of a watchdog that found a lost peer, that is not said."""
        said = {c: self.ranks_that_said((c,)) for c in WAITED}
        said[WATCHDOG_FAILED] -= self.lost_peer
        return frozenset().union(*said.values())

    @cached_property
    def lost_peer(self) -> frozenset[int]:
        """Ranks that said a peer went away."""
        return self.ranks_that_said(PEER_LOST)

    def ranks_that_said(self, codes: Collection[str]) -> frozenset[int]:
        """Ranks with a line of one of these codes."""
        return frozenset(h.origin.rank for h in self.hits if h.code in codes and h.origin.rank is not None)

    @cached_property
    def suffering(self) -> frozenset[int]:
        """Ranks with any line that is a consequence."""
        return frozenset(h.origin.rank for h in self.hits if h.kind == VICTIM and h.origin.rank is not None)

    @cached_property
    def without_a_word(self) -> frozenset[int]:
        """Ranks without a consequence, where they are not more than those that waited; else logs are missing."""
        silent = self.expected - self.suffering
        return silent if len(silent) <= len(self.waited) else frozenset()

    @cached_property
    def consequences(self) -> tuple[Hit, ...]:
        """Lines that are consequences of something."""
        return tuple(h for h in self.hits if h.kind == VICTIM and h.code != TOLD_TO_STOP)

    @cached_property
    def told(self) -> tuple[Hit, ...]:
        """What processes say of a failure themselves: causes and consequences."""
        return tuple(
            h for h in self.hits if h.kind in (ROOT, LIKELY, VICTIM) and h.code not in OF_THE_LAUNCHER
        )

    @cached_property
    def first_consequence(self) -> float | None:
        """The earliest time of a consequence."""
        return min((h.origin.time for h in self.consequences if h.origin.time is not None), default=None)

    @cached_property
    def failed_exits(self) -> tuple[Exit, ...]:
        """Exits that are neither good nor ordered by the launcher."""
        return tuple(e for e in self.exits if e.code not in (None, 0) and signal_of(e.code) != SIGTERM)

    @cached_property
    def killed(self) -> frozenset[int]:
        """Ranks that ended by SIGKILL."""
        return frozenset(e.rank for e in self.exits if e.rank is not None and signal_of(e.code) == SIGKILL)

    def is_escalated(self, entry: Exit) -> bool:
        """Whether the launcher killed a rank that did not heed its order to stop, after others had timed out."""
        if signal_of(entry.code) != SIGKILL or entry.first or not self.waited:
            return False
        return any(e.first and signal_of(e.code) != SIGKILL for e in self.exits)

    @cached_property
    def last(self) -> dict[int, LastLine]:
        """The last line of each rank."""
        return {x.rank: x for x in self.incident.last_lines}

    @cached_property
    def steps(self) -> dict[int, list[StepPoint]]:
        """Progress of each rank."""
        found: dict[int, list[StepPoint]] = {}
        for point in self.incident.steps:
            if point.rank is not None:
                found.setdefault(point.rank, []).append(point)
        return found

    def frames_of(self, rank: int) -> tuple[Frame, ...]:
        """The stack that is known of a rank: a traceback, a call site, a dump of its threads."""
        return self._frames.get(rank, ())

    @cached_property
    def _frames(self) -> dict[int | None, tuple[Frame, ...]]:
        found: dict[int | None, tuple[Frame, ...]] = {}
        for hit in self.hits:
            if hit.frames:
                found.setdefault(hit.origin.rank, hit.frames)
        for stack in self.incident.stacks:
            if stack.main:
                found.setdefault(stack.rank, stack.frames)
        return found

    def own_frame_of(self, rank: int) -> Frame | None:
        """Where a rank stood in the program itself."""
        return phases.own_frame(self.frames_of(rank))

    def phase_of(self, rank: int) -> str | None:
        """What a rank was doing, by its stack, else by its last line that is no consequence."""
        if found := phases.of_frames(self.frames_of(rank)):
            return found
        words = self.last_words(rank)
        return phases.of_text(words) if words else None

    def phase_of_hit(self, hit: Hit) -> str | None:
        """What the process that printed a line was doing, by the line's own stack, else by its rank's."""
        found = phases.of_frames(hit.frames)
        return found or (self.phase_of(hit.origin.rank) if hit.origin.rank is not None else None)

    def last_words(self, rank: int) -> str:
        """The last line of a rank that is the program's own."""
        last = self.last.get(rank)
        if last is None:
            return ""
        is_own = not last.own and (last.origin.file, last.origin.line) not in self._places
        return (last.text if is_own else last.own).strip()[:QUOTED]

    @cached_property
    def _places(self) -> frozenset[tuple[str, int]]:
        return frozenset((h.origin.file, h.origin.line) for h in self.hits)

    def survived(self, hit: Hit) -> bool:
        """Whether the job went on well after a line: later steps, or an end without any failure."""
        if self.failed_exits or self.consequences:
            return False
        return self.went_on(hit) or bool(self.incident.done) or self._ends_well(hit)

    def went_on(self, hit: Hit) -> bool:
        """Whether a file tells of further steps after a line: of its rank, if that one tells of steps at all."""
        at = hit.origin
        here = [p for p in self.incident.steps if p.origin.file == at.file]
        own = [p for p in here if p.rank == at.rank]
        return len({p.step for p in own or here if p.origin.line > at.line}) >= 2

    def is_accounted(self, hit: Hit) -> bool:
        """Whether a line is a record of the scheduler's accounting, which is read as such."""
        at = (hit.origin.file, hit.origin.line)
        return any((a.file, a.line) == at for a in self.incident.accounts)

    def _ends_well(self, hit: Hit) -> bool:
        length = next((i.lines for i in self.incident.inputs if i.name == hit.origin.file), 0)
        return not hit.frames and length - hit.origin.line > TAIL
