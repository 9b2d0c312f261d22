"""From the raw text of a line to what it says and who wrote it."""

from __future__ import annotations

import re

from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.prefixes import Prefix, Style, strip, style_of
from fsdp_doctor.diagnosis.records import Key, SourceScan
from fsdp_doctor.diagnosis.structured import said, under
from fsdp_doctor.subjects.incident import Origin

TEXT = 600
"""Characters of a line that are kept."""
MOST_PIECES = 40
BAR = re.compile(r"[^|]{0,80}\d{1,3}%\|")
"""A progress bar, which overwrites its line."""
INSIDE = re.compile(r"(?<=[^\s:\]])(?=\[rank\d{1,6}\]: ?\S)")


class Reader:
    """Reads the lines of one source: its style is told by its beginning, its path may name the writer."""

    def __init__(
        self, scan: SourceScan, year: int, style: Style | None = None, outer: Prefix | None = None
    ) -> None:
        self._scan = scan
        self._year = year
        self._style = style
        self._outer = outer
        """What a line of structured logging says of the writer of all lines inside it."""

    def begin(self, sample: bytes) -> None:
        """Learn how lines begin, from the source's beginning."""
        if self._style is None:
            self._style = style_of(sample.decode("utf-8", "replace"), self._year)

    def inside(self, outer: Prefix) -> Reader:
        """A reader of the lines within one line of this source."""
        return Reader(self._scan, self._year, self._style, outer)

    def strip(self, raw: str) -> Prefix:
        """A line's text, and what its prefix says."""
        assert self._style is not None
        prefix = strip(raw, self._style)
        return prefix if self._outer is None else under(prefix, self._outer)

    def line(self, at: int, number: int, raw: str) -> Line:
        """A line with its prefix, without what a progress bar left in front of it and without its JSON."""
        if "\r" in raw:
            parts = [p for p in raw.split("\r") if p.strip()]
            raw = next((p for p in reversed(parts) if not BAR.match(p)), parts[-1] if parts else "")
        if (told := said(raw)) is not None:
            texts, outer = told
            raw = texts[0] if len(texts) == 1 else " ".join(texts)
            return Line(at, number, raw, under(self.strip(raw), outer))
        return Line(at, number, raw, self.strip(raw))

    def key(self, prefix: Prefix) -> Key:
        """Who wrote a line, as far as its prefix or the source's path tell."""
        scan = self._scan
        rank = prefix.rank if prefix.rank is not None else scan.path_rank
        local = prefix.local_rank if prefix.local_rank is not None else scan.path_local
        return (rank, local, prefix.task, prefix.host or scan.path_host)

    def origin(self, line: Line) -> Origin:
        """Where a line stands and who wrote it."""
        prefix, scan = line.prefix, self._scan
        rank, local, _, host = self.key(prefix)
        return Origin(
            file=scan.name,
            line=line.number,
            rank=rank,
            local_rank=local,
            host=host,
            pid=prefix.pid,
            time=prefix.time,
            stream="kernel" if prefix.kernel else prefix.stream or scan.stream,
            attempt=scan.path_attempt + scan.attempts,
        )


def pieces(raw: str) -> list[str]:
    """The messages of one line: progress bars overwrite it, and ranks write into each other's lines."""
    if raw.startswith("{") and raw.rstrip().endswith("}"):
        return [raw.rstrip()]
    parts = [p for p in raw.split("\r") if p.strip()] if "\r" in raw else [raw]
    found: list[str] = []
    for part in parts[-MOST_PIECES:]:
        woven = part.count("[rank") > 1 or (not part.startswith("[") and "[rank" in part)
        found += INSIDE.split(part) if woven else [part]
    return found


def clip(text: str) -> str:
    """A text without blanks at its end, of bounded length."""
    text = text.rstrip()
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
