"""How processes ended, by whoever waited for them: torchrun, srun, mpirun and other launchers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from signal import Signals

from fsdp_doctor.diagnosis.records import Found, SourceScan
from fsdp_doctor.diagnosis.who import Who
from fsdp_doctor.subjects.incident import Exit

AGENT, TASK, MPI, LAUNCHER = "LOG201", "LOG215", "LOG216", "LOG222"
SIGNALS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Out Of Memory": 9,
    "Floating point exception": 8,
}


def exits(scans: Sequence[SourceScan], who: Who) -> list[Exit]:
    """All exits, each once; torchrun's table first, which knows most of them."""
    found: dict[tuple[object, ...], Exit] = {}
    for scan in scans:
        for entry in scan.exits:
            key = (entry.rank, entry.pid, entry.origin.attempt, entry.code)
            if entry.first or key not in found:
                found[key] = entry
        for line in scan.found:
            for extra in _exits_of(line, scan, who):
                if not any(_is_same(extra, e) for e in found.values()):
                    found[extra.rank, extra.pid, extra.origin.attempt, extra.code] = extra
    return list(found.values())


def _is_same(one: Exit, two: Exit) -> bool:
    same_rank = one.rank is not None and one.rank == two.rank
    return same_rank or (one.pid is not None and one.pid == two.pid)


def _exits_of(entry: Found, scan: SourceScan, who: Who) -> Iterable[Exit]:
    hit, fields = entry.hit, entry.hit.fields
    if hit.code == AGENT:
        local, pid = int(fields["lr"]), int(fields["pid"])
        rank = who.rank(scan.name, (None, local, None, None), pid)
        yield Exit(hit.origin, rank, local, hit.origin.host, pid, int(fields["code"]), "torchrun", True)
    elif hit.code == TASK:
        code = int(fields["code"]) if "code" in fields else -SIGNALS.get(fields.get("sig", ""), 0)
        told, host = fields.get("sig", ""), fields.get("host")
        for task in numbers(fields.get("tasks", "")):
            rank = task if who.tasks_are_ranks else None
            yield Exit(hit.origin, rank, host=host, code=code, reporter="srun", told=told)
    elif hit.code == MPI and "rank" in fields:
        rank, pid, code = (int(fields[name]) for name in ("rank", "pid", "n"))
        host = fields.get("host")
        yield Exit(hit.origin, rank, host=host, pid=pid, code=-code, reporter="mpirun", first=True)
    elif hit.code == LAUNCHER:
        yield _by_launcher(entry)


def _by_launcher(entry: Found) -> Exit:
    """The exit in a line of one of several launchers, whose wordings have groups with numbered names."""
    hit = entry.hit
    values = {name.rstrip("0123456789"): value for name, value in hit.fields.items()}
    code = int(values["code"]) if "code" in values else None
    if "died from signal" in hit.text and code is not None:
        code = -code
    if "sig" in values:
        code = -int(getattr(Signals, values["sig"], 0))
    rank = int(values["rank"]) if "rank" in values else hit.origin.rank
    pid = int(values["pid"]) if "pid" in values else None
    return Exit(hit.origin, rank, host=hit.origin.host, pid=pid, code=code, reporter="launcher")


def numbers(text: str) -> list[int]:
    """The numbers of `0,3-5`."""
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            numbers += range(int(low), min(int(high) if high.isdigit() else int(low), int(low) + 4096) + 1)
    return numbers
