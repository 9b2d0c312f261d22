"""What one source (a file, a stream, a part of a big file) gave: plain values, sent between processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fsdp_doctor.subjects.accounting import Account
from fsdp_doctor.subjects.incident import Exit, Frame, Hit, Origin, StepPoint, ThreadStack
from fsdp_doctor.subjects.ras import RasReport

Key = tuple[int | None, int | None, int | None, str | None]
"""Rank, local rank, task, host: as far as a line's prefix tells who wrote it."""


@dataclass(slots=True)
class Found:
    """A hit whose rank may still have to be worked out."""

    hit: Hit
    key: Key
    count: int = 1
    last_time: float | None = None


@dataclass(slots=True)
class Marked:
    """A marker's groups, and who wrote the line."""

    code: str
    fields: dict[str, str]
    key: Key
    origin: Origin
    text: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass(slots=True)
class Seen:
    """The last line of one writer among those that were looked at."""

    text: str
    origin: Origin
    lines: int = 1
    first_line: int = 0
    own: str = ""
    """The last one that the program printed, and not a library about a failure."""


@dataclass(slots=True)
class SourceScan:
    """All that one source gave."""

    name: str
    kind: str = "log"
    bytes: int = 0
    lines: int = 0
    problem: str = ""
    found: list[Found] = field(default_factory=list)
    marked: list[Marked] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    stacks: list[tuple[Key, ThreadStack]] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    ras: list[RasReport] = field(default_factory=list)
    steps: dict[Key, list[StepPoint]] = field(default_factory=dict)
    seen: dict[Key, Seen] = field(default_factory=dict)
    attempts: int = 0
    path_rank: int | None = None
    path_local: int | None = None
    path_host: str | None = None
    path_attempt: int = 0
    stream: str | None = None

    def join(self, later: SourceScan) -> None:
        """Append what the part of the file after this one gave."""
        for part in (later.found, later.marked, later.exits, later.stacks):
            _shift(part, self.lines, self.attempts)
        self.accounts += [replace(a, line=a.line + self.lines) for a in later.accounts]
        self.ras += [replace(r, line=r.line + self.lines) for r in later.ras]
        self.found += later.found
        self.marked += later.marked
        self.exits += later.exits
        self.stacks += later.stacks
        for key, points in later.steps.items():
            self.steps.setdefault(key, []).extend(points)
        for key, seen in later.seen.items():
            old = self.seen.get(key)
            seen.origin = _moved(seen.origin, self.lines, self.attempts)
            seen.lines += old.lines if old else 0
            self.seen[key] = seen
        self.bytes += later.bytes
        self.lines += later.lines
        self.attempts += later.attempts
        self.problem = self.problem or later.problem


def _moved(origin: Origin, lines: int, attempts: int) -> Origin:
    return replace(origin, line=origin.line + lines, attempt=origin.attempt + attempts)


def _shift(
    parts: list[object] | list[Found] | list[Marked] | list[Exit] | list[tuple[Key, ThreadStack]],
    lines: int,
    attempts: int,
) -> None:
    for i, part in enumerate(parts):
        if isinstance(part, Found):
            part.hit = replace(part.hit, origin=_moved(part.hit.origin, lines, attempts))
        elif isinstance(part, Marked):
            part.origin = _moved(part.origin, lines, attempts)
        elif isinstance(part, Exit):
            parts[i] = replace(part, origin=_moved(part.origin, lines, attempts))  # type: ignore[call-overload]
        elif isinstance(part, tuple):
            parts[i] = (part[0], replace(part[1], origin=_moved(part[1].origin, lines, attempts)))  # type: ignore[call-overload]
