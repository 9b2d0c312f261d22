"""Processes of /proc and the shared memory that dead ones left behind."""

from __future__ import annotations

import re

from fsdp_doctor.facts.parse import fields, integer
from fsdp_doctor.facts.source import Source, text
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.host import Process

PROCESS_LIMIT = 8192
COMMAND_LIMIT = 16384
SHM = "/dev/shm"
LEFTOVER = re.compile(r"^(nccl-|torch_|cuda\.shm\.|sem\.|psm_|__KMP_REGISTERED_LIB_)")
SHM_LIMIT = 4096


def processes(source: Source) -> tuple[Process, ...]:
    """Processes by id: process 1 and the youngest of the others where there are very many."""
    pids = sorted(int(n) for n in source.listdir("/proc") if n.isascii() and n.isdigit() and len(n) < 10)
    if len(pids) > PROCESS_LIMIT:
        pids = pids[:1] + pids[1 - PROCESS_LIMIT :]
    return tuple(p for pid in pids if (p := process(source, pid)) is not None)


def process(source: Source, pid: int) -> Process | None:
    """One process; None if it is gone."""
    folder = f"/proc/{pid}"
    name = text(source, f"{folder}/comm", 256)
    status = fields(text(source, f"{folder}/status", COMMAND_LIMIT))
    state = (status.get("State") or "")[:1] or None
    name = name or status.get("Name")
    if name is None:
        return None
    # Reading the command line of a process that hangs in the kernel can hang as well.
    command = () if state in ("D", "Z") else command_line(source, pid)
    return Process(
        pid=pid,
        name=name,
        state=state,
        ppid=integer(status.get("PPid")),
        uid=integer(next(iter((status.get("Uid") or "").split()), None)),
        cmdline=command,
        wait_channel=wait_channel(source, pid) if state == "D" else None,
    )


def command_line(source: Source, pid: int) -> tuple[str, ...]:
    """Arguments of a process; empty for a kernel thread."""
    raw = source.read(f"/proc/{pid}/cmdline", COMMAND_LIMIT)
    if isinstance(raw, Unknown) or not raw:
        return ()
    return tuple(raw.decode("utf-8", "replace").rstrip("\0").split("\0"))


def wait_channel(source: Source, pid: int) -> str | None:
    """The kernel function that a process sleeps in; None where the kernel hides it."""
    name = text(source, f"/proc/{pid}/wchan", 256)
    return name if name and name != "0" else None


def shm_segments(source: Source) -> tuple[tuple[str, int, int | None], ...]:
    """(path, bytes, owner uid) of files in /dev/shm that NCCL, torch and their helpers make."""
    found: list[tuple[str, int, int | None]] = []
    for name in [n for n in source.listdir(SHM) if LEFTOVER.match(n)][:SHM_LIMIT]:
        facts = source.stat(f"{SHM}/{name}")
        if facts is not None:
            found.append((f"{SHM}/{name}", facts[0], facts[1]))
    return tuple(found)
