"""Parts of a log that are more than one line: tracebacks, torchrun's table, stacks of threads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_doctor.diagnosis.prefixes import Prefix
from fsdp_doctor.diagnosis.structured import under
from fsdp_doctor.subjects.incident import Frame

MAX_FRAMES = 64
MAX_AHEAD = 400
"""Lines that a traceback may be long, those of other ranks in between included."""

FRAME = re.compile(r'\s+File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<fn>\S.*?))?\s*$')
LATE_FRAME = re.compile(r'\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+),? in (?P<fn>\S+)')
PYSPY_FRAME = re.compile(r"\s{2,}(?P<fn>\S+) \((?P<file>[^():]+)(?::(?P<line>\d+))?\)\s*$")
PROCESS = re.compile(r"Process (?P<pid>\d+): (?P<cmd>.*)")
ENDED = re.compile(r"(?:[A-Za-z_][\w.]*)(?::|$)")
AGAIN = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with what its prefix says, and where it begins in its block."""

    at: int
    number: int
    raw: str
    prefix: Prefix

    @property
    def key(self) -> tuple[object, ...]:
        """Lines of one writer have the same."""
        p = self.prefix
        return (p.rank, p.local_rank if p.rank is None else None, p.task, p.host if p.rank is None else None)

    @property
    def is_bare(self) -> bool:
        """Whether nothing stands before its text."""
        return self.prefix.time is None and not any(part is not None for part in self.key)


@dataclass(frozen=True, slots=True)
class Trace:
    """A traceback: its frames, the line of its exception (None where it is cut), and all its lines."""

    frames: tuple[Frame, ...]
    end: Line | None
    lines: tuple[int, ...]


def traceback(start: Line, following: Iterator[Line]) -> Trace:
    """Follow a traceback from its first line, past lines of other writers.

    Loggers put their prefix before the first line of a message alone: where the next line is a frame without
    any, the rest has none either, and belongs to who wrote the first.
    """
    frames: list[Frame] = []
    mine = [start.at]
    indent = len(start.prefix.text) - len(start.prefix.text.lstrip())
    bare = False
    for count, line in enumerate(following):
        if count > MAX_AHEAD:
            break
        if count == 0 and not start.is_bare:
            bare = line.is_bare and FRAME.match(line.prefix.text) is not None
        if not line.is_bare if bare else line.key != start.key:
            continue
        text = line.prefix.text[indent:] if line.prefix.text[:indent].isspace() else line.prefix.text
        if not text.strip():
            if frames:
                continue
            break
        if text[0] in " \t":
            mine.append(line.at)
            found = FRAME.match(text)
            if found:
                if len(frames) < MAX_FRAMES:
                    frames.append(Frame((found["fn"] or "")[:200], found["file"], int(found["line"])))
            elif frames and not frames[-1].code and not set(text.strip()) <= set("^~ "):
                last = frames[-1]
                frames[-1] = Frame(last.function, last.file, last.line, text.strip()[:200])
            continue
        if text.startswith("Traceback (") or text.startswith(AGAIN):
            break
        mine.append(line.at)
        if bare:
            under(line.prefix, start.prefix)
        return Trace(tuple(frames), line, tuple(mine))
    return Trace(tuple(frames), None, tuple(mine))


def late_first(following: Iterator[Line], start: Line) -> tuple[Frame, ...]:
    """The frames of faulthandler, which prints the innermost first; turned round."""
    frames: list[Frame] = []
    for count, line in enumerate(following):
        if count > MAX_FRAMES or (found := LATE_FRAME.match(line.prefix.text)) is None:
            if line.key != start.key and count <= MAX_FRAMES:
                continue
            break
        frames.append(Frame(found["fn"], found["file"], int(found["line"])))
    return tuple(reversed(frames))


def pyspy(following: Iterator[Line]) -> tuple[Frame, ...]:
    """The frames of py-spy, which prints the innermost first; turned round."""
    frames: list[Frame] = []
    for count, line in enumerate(following):
        found = PYSPY_FRAME.match(line.raw)
        if found is None or count > MAX_FRAMES:
            break
        frames.append(Frame(found["fn"], found["file"], int(found["line"] or 0) or None))
    return tuple(reversed(frames))


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One process of torchrun's table."""

    rank: int
    local_rank: int
    time: str = ""
    host: str = ""
    code: int | None = None
    pid: int | None = None
    told: str = ""
    first: bool = False


_FIELD = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<lr>\d+)\)")


def table_entry(before: Sequence[Line], line: Line, following: Iterator[Line]) -> TableEntry | None:
    """The entry around a line `rank : N (local_rank: M)`; `before` are the lines above it, nearest last."""
    values: dict[str, str] = {}
    first = False
    for above in reversed(before[-8:]):
        text = above.prefix.text
        if "Root Cause" in text:
            first = True
            break
        if (found := _FIELD.match(text)) and found["name"] in ("time", "host"):
            values.setdefault(found["name"], found["value"].strip())
        elif re.match(r"\s*\[\d+\]:", text) is None:
            break
    for count, below in enumerate(following):
        found = _FIELD.match(below.prefix.text)
        if found is None or count > 5 or found["name"] in ("time", "host", "rank"):
            break
        values[found["name"]] = found["value"].strip()
    rank = _RANK.search(line.prefix.text)
    if rank is None:
        return None
    code = _CODE.search(values.get("exitcode", ""))
    return TableEntry(
        int(rank["rank"]),
        int(rank["lr"]),
        values.get("time", ""),
        values.get("host", ""),
        int(code["code"]) if code else None,
        int(code["pid"]) if code else None,
        values.get("traceback", ""),
        first,
    )
