"""What healthy lines tell, in samples: which ranks write, what they said last, and the steps they report."""

from __future__ import annotations

import re
from collections.abc import Container

from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.data_share import data_share
from fsdp_doctor.diagnosis.phase_times import phase_times
from fsdp_doctor.diagnosis.progress import counted, progress, thin
from fsdp_doctor.diagnosis.reader import Reader, clip
from fsdp_doctor.diagnosis.records import Key, Seen, SourceScan
from fsdp_doctor.diagnosis.window import Window
from fsdp_doctor.subjects.incident import StepPoint

WHOLE = 1 << 20
"""A part up to this size is looked at line by line; a larger one in samples."""
SAMPLE = 6 << 10
SAMPLES = 3
LONGEST, LONGEST_BARS = 2000, 64 << 10
"""Bytes of a line that are read, and of one that a progress bar overwrites again and again."""
KEEP_WRITERS = 8192
NOTED = 256
"""Lines of one writer that wait for a closer look."""
LOUD = re.compile(
    r"ProcessGroup\w*\.cpp|TCPStore|\bc10d\b|\bNCCL\b|\[(?:PG|Rank) |Watchdog|frame #\d|"
    r"Exception raised from|terminate called|what\(\)|recvValue|sendBytes|closing signal|Signal \d|"
    r"^\s*(?:File \"|Traceback|\^|~)|"
    r"^(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Warning|Interrupt|Exit)\b|"
    r"^\s*(?:time|host|rank|exitcode|error_file|traceback) +:|^[-=]{8,}|^(?:Failures|Root Cause)\b",
)
"""Lines that libraries print about a failure, none of which says what the program was doing."""


def samples(start: int, end: int) -> list[tuple[int, int]]:
    """Which bytes of a part are looked at line by line."""
    if end - start <= WHOLE:
        return [(start, end)]
    step = (end - start) // SAMPLES
    spread = [(start + i * step, start + i * step + SAMPLE) for i in range(SAMPLES)]
    return [*spread, (end - 4 * SAMPLE, end)]


class Notes:
    """Notes the lines of one source in its scan."""

    def __init__(self, scan: SourceScan, reader: Reader) -> None:
        self._scan = scan
        self._reader = reader
        self._waiting: dict[Key, list[Line]] = {}

    def observe(self, window: Window, low: int, high: int, taken: Container[int]) -> None:
        """Note every line between two places; those in `taken` are parts of a traceback or a table."""
        data = window.data
        if low > window.start:
            low = data.find(b"\n", low, high) + 1
            if low == 0:
                return
        number = window.number(low)
        grows = window.counts
        while low < high:
            stop = data.find(b"\n", low, high)
            stop = stop if stop >= 0 else high
            if stop > low:
                raw = window.text(low, min(stop, low + LONGEST))
                line = self._reader.line(low, number, raw)
                self._note(line, taken)
                if b"\r" in data[low : low + LONGEST]:
                    self._note_bars(line, window.text(low, min(stop, low + LONGEST_BARS)))
            low = stop + 1
            number += grows
        self._settle(taken)

    def _note(self, line: Line, taken: Container[int]) -> None:
        text, key = line.prefix.text, self._reader.key(line.prefix)
        if not text.strip():
            return
        seen = self._scan.seen.get(key)
        if seen is None:
            if len(self._scan.seen) >= KEEP_WRITERS:
                return
            seen = Seen(clip(text), self._reader.origin(line), 0, line.number)
            self._scan.seen[key] = seen
        seen.lines += 1
        waiting = self._waiting.setdefault(key, [])
        waiting.append(line)
        if len(waiting) >= NOTED:
            self._settle(taken)
        if line.at not in taken:
            self._note_step(key, line, text)

    def _note_bars(self, line: Line, raw: str) -> None:
        """The states of a progress bar, which overwrite each other in one line."""
        for state in raw.split("\r"):
            if (point := progress(state)) is not None:
                points = self._scan.steps.setdefault(self._reader.key(line.prefix), [])
                points.append(StepPoint(None, point[0], point[1], self._reader.origin(line)))
                thin(points)

    def _note_step(self, key: Key, line: Line, text: str) -> None:
        share = data_share(text)
        point = progress(text)
        if point is None and share is not None and (number := counted(text)) is not None:
            point = number, None
        if point is not None:
            points = self._scan.steps.setdefault(key, [])
            origin, parts = self._reader.origin(line), phase_times(text)
            points.append(StepPoint(None, point[0], point[1], origin, share, parts))
            thin(points)

    def _settle(self, taken: Container[int]) -> None:
        """Of each writer the last line, and the last one of its own: only these are looked at closely."""
        for key, lines in self._waiting.items():
            seen = self._scan.seen[key]
            seen.text, seen.origin = clip(lines[-1].prefix.text), self._reader.origin(lines[-1])
            for line in reversed(lines):
                text = line.prefix.text
                if line.at not in taken and not LOUD.search(text) and not LOUD.search(line.raw):
                    seen.own = clip(text)
                    break
        self._waiting.clear()
