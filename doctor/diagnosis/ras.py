"""Answers of NCCL's RAS service, as `ncclras` prints them: who is dead, who is silent, who lags behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.subjects.ras import COUNTS, DEAD, SILENT, RasRank, RasReport, RasTrouble

LONGEST = 20_000
"""Lines of one answer, at most."""
MOST_RANKS = 4096
NEXT = re.compile(r"^(?:Job summary|Communicators\.\.\. )")
_ROW = re.compile(r"\s*\d+\s+\d+\s+\d+\s+[\d-]+\s+(?P<size>\d+)\s+\d+\s+[A-Z]+\s+[A-Z]+\s*$")
_TOTALS = re.compile(r"\s*\d+\s+\S+\s+\S+\s+\d+\s+(?P<gpus>\d+)\s*$")
_HEAD = re.compile(r"(?:#[\d-]+ \((?P<comm>\w+)\) )?(?P<what>DEAD|INCOMPLETE|MISMATCH|ERROR|TIMEOUT)$")
_DIFFER = re.compile(r"\s+Communicator ranks have different (?P<op>\w+) operation counts")
_MANY = re.compile(r"\s+(?P<n>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched any)")
_RANK = re.compile(
    r"\s+Rank (?P<rank>\d+)"
    r"(?: has launched up to operation (?P<count>\d+)| has (?P<none>not) launched any operations)?"
    r" -- (?:GPU (?P<gpu>\S+) managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[)"
)
_PROCESS = re.compile(r"\s+Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpu>.+)")
_MISSING = re.compile(r"\s+The missing ranks?: (?P<ranks>[\d, -]+)")


@dataclass(slots=True)
class _Entry:
    """An entry while its lines are read."""

    what: str
    communicator: str
    line: Line
    operation: str = ""
    ranks: list[RasRank] = field(default_factory=list)
    others: list[tuple[int, int]] = field(default_factory=list)
    shared: int | None = None
    """The count of the ranks that are listed next."""

    def trouble(self) -> RasTrouble | None:
        """What it says; None where it names nobody."""
        kind = {"DEAD": DEAD, "INCOMPLETE": SILENT}.get(self.what, COUNTS if self.operation else "")
        if not kind or not self.ranks:
            return None
        return RasTrouble(
            kind,
            tuple(self.ranks[:MOST_RANKS]),
            self.communicator,
            self.operation,
            tuple(self.others),
            self.line.number,
            " ".join(self.line.raw.split()),
        )


def report(start: Line, above: Iterable[Line], below: Iterator[Line]) -> RasReport:
    """One answer; `start` is the line "Communicators...", before which the size of the job stands."""
    gpus = next((int(m["gpus"]) for a in above if (m := _TOTALS.match(a.raw))), None)
    largest: int | None = None
    entries: list[_Entry] = []
    for count, line in enumerate(below):
        if count > LONGEST or NEXT.match(line.raw):
            break
        if row := _ROW.match(line.raw):
            largest = max(int(row["size"]), largest or 0)
        elif head := _HEAD.match(line.raw.rstrip()):
            entries.append(_Entry(head["what"], head["comm"] or "", line))
        elif differ := _DIFFER.match(line.raw):
            if entries and entries[-1].operation:
                entries.append(_Entry(entries[-1].what, entries[-1].communicator, line))
            if entries:
                entries[-1].operation = differ["op"]
        elif entries:
            _take(entries[-1], line.raw)
    troubles = tuple(t for e in entries if (t := e.trouble()) is not None)
    return RasReport(troubles, gpus, largest, line=start.number, text=start.raw.strip())


def _take(entry: _Entry, raw: str) -> None:
    """The ranks, processes and counts of an entry's further lines."""
    if many := _MANY.match(raw):
        entry.shared = int(many["count"] or 0)
        entry.others.append((entry.shared, int(many["n"])))
    elif process := _PROCESS.match(raw):
        entry.ranks.append(RasRank(None, int(process["pid"]), process["host"], process["gpu"].strip()))
    elif missing := _MISSING.match(raw):
        entry.ranks += [RasRank(int(n)) for n in re.findall(r"\d+", missing["ranks"])]
    elif found := _RANK.match(raw):
        alone = int(found["count"]) if found["count"] else 0 if found["none"] else None
        listed = entry.shared if entry.operation else None
        entry.ranks.append(
            RasRank(
                int(found["rank"]),
                int(found["pid"]) if found["pid"] else None,
                found["host"],
                found["gpu"] or "",
                alone if alone is not None else listed,
            )
        )
