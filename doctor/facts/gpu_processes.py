"""The processes that hold a GPU, with name and owner from the source's /proc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fsdp_doctor.facts.nvml_answers import Answers, integer
from fsdp_doctor.facts.source import Json, Source, text
from fsdp_doctor.subjects.gpu import GpuProcess

NOT_AVAILABLE = (1 << 64) - 1
"""NVML's value where the driver does not tell a process's memory."""
GENERATIONS = 16
"""How many parents are followed to see whether this tool started a process."""


def processes(source: Source, answers: Answers, function: str) -> tuple[GpuProcess, ...] | None:
    """The processes that `function`, newest version first, lists; None where no version answered."""
    for version in ("_v3", "_v2", ""):
        listed = answers.first(function + version)
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            found = [_process(source, p) for p in listed if isinstance(p, Mapping)]
            return tuple(p for p in found if p is not None)
    return None


def _process(source: Source, entry: Mapping[str, Json]) -> GpuProcess | None:
    pid, used = integer(entry.get("pid")), integer(entry.get("usedGpuMemory"))
    if pid is None:
        return None
    return GpuProcess(
        pid,
        None if used is None or used in (-1, NOT_AVAILABLE) else used,
        _name(source, pid),
        _status(source, pid, "Uid"),
        _is_own(source, pid),
    )


def _name(source: Source, pid: int) -> str | None:
    return text(source, f"/proc/{pid}/comm", 64) or None


def _status(source: Source, pid: int, key: str) -> int | None:
    """The first number of a line of /proc/PID/status."""
    for line in (text(source, f"/proc/{pid}/status", 4096) or "").splitlines():
        name, _, values = line.partition(":")
        if name == key and values.split():
            return integer(values.split()[0])
    return None


def _is_own(source: Source, pid: int) -> bool:
    """Whether this tool is the process or one of its parents; a recording has no such process."""
    own = integer(source.readlink("/proc/self"))
    if own is None:
        return False
    for _ in range(GENERATIONS):
        if pid == own:
            return True
        parent = _status(source, pid, "PPid")
        if parent is None or parent <= 1:
            return False
        pid = parent
    return False
