"""What lines tell that are no symptom, with the lines around them: stacks, call sites, torchrun's table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis import accounting, blocks, markers, ras
from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.clocks import parse
from fsdp_doctor.diagnosis.prefixes import Prefix
from fsdp_doctor.diagnosis.reader import Reader, clip
from fsdp_doctor.diagnosis.records import Marked, SourceScan
from fsdp_doctor.diagnosis.structured import under
from fsdp_doctor.diagnosis.window import Window
from fsdp_doctor.subjects.incident import Exit, Frame, ThreadStack

STACKS = (markers.STACK, markers.MEMORY_STACK)
HEAD = 8
"""Lines above an entry of a table that may belong to it."""
TOLD = 300
FIGURES_BELOW = ("would exceed allowed memory", "ActorDiedError: ", "node running low on memory")
"""In errors of cudaMallocAsync and of Ray who and how much stand in the lines after it."""


SEVERE = ("E", "C", "F")
TROUBLE = re.compile(r"error|exception|fail|crash|uncaught|abort", re.IGNORECASE)


class Surroundings:
    """A line that was met, and the lines before and after it."""

    def __init__(self, line: Line, stop: int, window: Window, reader: Reader) -> None:
        self.line = line
        self._stop = stop
        self._window = window
        self._reader = reader

    def below(self) -> Iterator[Line]:
        """Lines after it, to the end of the window."""
        for number, (at, raw) in enumerate(self._window.following(self._stop + 1), self.line.number + 1):
            yield self._reader.line(at, number, raw)

    def above(self, count: int) -> list[Line]:
        """At most so many lines before it; they have no numbers."""
        return [self._reader.line(at, 0, raw) for at, raw in self._window.above(self.line.at, count)]


def whole_message(around: Surroundings) -> str:
    """The text of a line, with the lines below it where its figures stand there."""
    text = around.line.prefix.text
    if not any(words in text for words in FIGURES_BELOW):
        return text
    parts = [text]
    for line in around.below():
        if line.key != around.line.key or len(parts) > HEAD or ":" not in line.prefix.text:
            break
        parts.append(" ".join(line.prefix.text.split()))
    return "; ".join(parts)


def inherit(around: Surroundings) -> None:
    """A traceback without prefix below a logger's line that tells of an error is of who wrote that line."""
    above = around.above(1)
    if not above or above[0].is_bare:
        return
    prefix = above[0].prefix
    if prefix.severity in SEVERE or TROUBLE.search(prefix.text):
        under(around.line.prefix, prefix)


def block(fields: Mapping[str, str]) -> Prefix:
    """Whose output a launcher repeats from this line on: nobody's where it says that it ends."""
    if fields["which"] == "End":
        return Prefix()
    return Prefix(rank=int(fields["rank"]), stream=fields["stream"].lower())


def mark(
    scan: SourceScan, reader: Reader, code: str, fields: Mapping[str, str], around: Surroundings
) -> Sequence[int]:
    """Note what a marker caught; gives where other lines begin that were read with it."""
    if code in STACKS:
        _stack(scan, reader, code, fields, around)
        return ()
    if code in markers.ACCOUNTS:
        accounts, taken = accounting.read(code, fields, around.line, around.above(HEAD), around.below())
        scan.accounts += [replace(a, file=scan.name) for a in accounts]
        return taken
    line = around.line
    if code == markers.RAS:
        answer = ras.report(line, around.above(HEAD), around.below())
        scan.ras.append(replace(answer, file=scan.name))
        return ()
    frames: tuple[Frame, ...] = ()
    if code == markers.FRAME:
        frames = (_frame(fields, _source(around)),)
    elif code == markers.CALL_SITE:
        frames = (_frame(fields),)
    key = reader.key(line.prefix)
    scan.marked.append(Marked(code, dict(fields), key, reader.origin(line), clip(line.prefix.text), frames))
    return ()


def _frame(fields: Mapping[str, str], code: str = "") -> Frame:
    return Frame(fields["fn"], fields["file"], int(fields["line"]), code)


def _source(around: Surroundings) -> str:
    """The line of the program below a frame."""
    below = next(around.below(), None)
    text = below.prefix.text.strip() if below is not None and below.key == around.line.key else ""
    return "" if text.startswith("File ") else text[:200]


def _stack(
    scan: SourceScan, reader: Reader, code: str, fields: Mapping[str, str], around: Surroundings
) -> None:
    line = around.line
    below = around.below()
    frames = blocks.pyspy(below) if code == markers.STACK else blocks.late_first(below, line)
    if not frames:
        return
    command, pid = "", None
    for above in around.above(6):
        if found := blocks.PROCESS.match(above.raw):
            pid, command = int(found["pid"]), found["cmd"][:TOLD]
    main = fields.get("which") != "Thread"
    pid = pid if pid is not None else line.prefix.pid
    stack = ThreadStack(frames, reader.origin(line), None, pid, fields["tid"], main, command)
    scan.stacks.append((reader.key(line.prefix), stack))


def table(scan: SourceScan, reader: Reader, around: Surroundings) -> None:
    """Note an entry of torchrun's table of failures."""
    entry = blocks.table_entry(around.above(HEAD), around.line, around.below())
    if entry is None:
        return
    host = entry.host or None
    origin = replace(reader.origin(around.line), time=parse(entry.time), rank=entry.rank, host=host)
    scan.exits.append(
        Exit(
            origin,
            rank=entry.rank,
            local_rank=entry.local_rank,
            host=host,
            pid=entry.pid,
            code=entry.code,
            reporter="torchrun",
            first=entry.first,
            told=entry.told[:TOLD],
        )
    )
