"""How often each signature met each writer, and which of the hits are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.diagnosis.prefixes import rank_in_text
from fsdp_doctor.diagnosis.records import Found, Key, SourceScan
from fsdp_doctor.subjects.incident import Hit

KEEP_EACH = 40
"""Hits of one signature and one writer that are kept; more are counted."""
KEEP_ALL = 60_000
KEEP_MARKS = 400


@dataclass(slots=True)
class Ledger:
    """What was met in one source. A line of structured logging is counted with the others of its source."""

    scan: SourceScan
    always: frozenset[str]
    """Codes of which every line is looked at."""
    kept: dict[tuple[str, Key], list[Found]] = field(default_factory=dict)
    counts: dict[tuple[str, Key], int] = field(default_factory=dict)
    marks: dict[tuple[str, Key], int] = field(default_factory=dict)
    tokens: dict[bytes, Key | None] = field(default_factory=dict)
    """Beginning of a line -> the writer it stands for; None where it stands for several."""

    def has_enough(self, code: str, key: Key) -> bool:
        """Whether no more hits of a signature are kept of a writer."""
        return self.counts.get((code, key), 0) >= KEEP_EACH and code not in self.always

    def count(self, code: str, key: Key) -> int:
        """Count a hit; gives how many there were before."""
        before = self.counts.get((code, key), 0)
        self.counts[code, key] = before + 1
        return before

    def again(self, code: str, key: Key, time: float | None) -> None:
        """Count a hit that is not kept."""
        self.count(code, key)
        if kept := self.kept.get((code, key)):
            kept[0].last_time = time or kept[0].last_time

    def add(self, hit: Hit, key: Key, line: Line) -> None:
        """Keep a hit."""
        if len(self.scan.found) >= KEEP_ALL:
            return
        if key[0] is None and (rank := rank_in_text(line.raw)) is not None:
            hit = replace(hit, fields={**hit.fields, "said_rank": str(rank)})
        entry = Found(hit, key, 1, line.prefix.time)
        self.scan.found.append(entry)
        self.kept.setdefault((hit.code, key), []).append(entry)

    def takes_mark(self, code: str, key: Key) -> bool:
        """Whether one more mark of a writer is taken; it is counted then."""
        count = self.marks.get((code, key), 0)
        if count >= KEEP_MARKS:
            return False
        self.marks[code, key] = count + 1
        return True

    def remember(self, token: bytes, key: Key) -> None:
        """Note which writer the beginning of a line stands for."""
        if self.tokens.setdefault(token, key) != key:
            self.tokens[token] = None

    def passes_over(self, token: bytes, codes: Sequence[str]) -> bool:
        """Whether a writer has long had enough of all these signatures; they are counted then.

        It spares a look at the line, which makes a log of nothing but complaints bearable.
        """
        key = self.tokens.get(token)
        if key is None:
            return False
        counts = self.counts
        if any(counts.get((c, key), 0) < KEEP_EACH or c in self.always for c in codes):
            return False
        for code in codes:
            counts[code, key] += 1
        return True

    def close(self) -> None:
        """Write into the first hit of each signature and writer how many were not kept."""
        for (code, key), kept in self.kept.items():
            kept[0].count = max(self.counts.get((code, key), 0) - len(kept) + 1, 1)
