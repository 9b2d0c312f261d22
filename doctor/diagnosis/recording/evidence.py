"""What a host tells of a run after its end: kills for memory and faults of devices."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.facts.redact import Redactor

DMESG_SECONDS = 5.0
TELLING = re.compile(
    r"oom|out of memory|killed process|NVRM|Xid|segfault|traps:|general protection|mlx5|nfs:|I/O error|AER",
    re.I,
)
"""Lines of the kernel that may end a job."""
LINE_LIMIT = 2000
XID_PROCESS = re.compile(r"NVRM: Xid .*?\bpid='?(\d{1,9})\b")
FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's own name of the outermost namespace of process ids (PROC_PID_INIT_INO)."""
EVENTS = ("memory.events", "memory.oom_control")
CGROUP = Path("/sys/fs/cgroup")


def kernel_lines(since: float, pids: Collection[int] = ()) -> tuple[str, ...]:
    """Telling lines of the kernel's log from the last `since` seconds; nothing where it cannot be read.

    Faults that the driver ascribes to other processes than `pids` are another job's on the same host.
    """
    outcome = process.run(["dmesg", "--time-format", "iso"], DMESG_SECONDS)
    if not outcome.ok:
        return ()
    lines = outcome.stdout.decode("utf-8", "replace").splitlines()
    redactor = Redactor()
    own = pids if pids and _counts_like_the_kernel() else ()
    told = [
        redactor.text(w)
        for w in lines
        if TELLING.search(w) and _is_recent(w, since) and not _is_anothers(w, own)
    ]
    return tuple(told[-LINE_LIMIT:])


def _counts_like_the_kernel() -> bool:
    """Whether process ids here are those of the kernel's log: in a container they are not."""
    try:
        return os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE
    except OSError:
        return False


def _is_anothers(line: str, pids: Collection[int]) -> bool:
    match = XID_PROCESS.search(line)
    return match is not None and bool(pids) and int(match[1]) not in pids


def _is_recent(line: str, since: float) -> bool:
    """Dmesg's ISO time with a comma: 2026-12-02T06:54:38,512345+00:00."""
    from datetime import datetime, timezone

    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[,.]\d+([+-]\d\d:?\d\d)", line)
    if match is None:
        return True
    try:
        zone = match[2] if ":" in match[2] else f"{match[2][:3]}:{match[2][3:]}"
        told = datetime.fromisoformat(match[1] + zone)
    except ValueError:
        return True
    return (datetime.now(timezone.utc) - told).total_seconds() <= since


def oom_kills(root: Path = CGROUP) -> int | None:
    """Kills for memory in this process's control group so far; None where the kernel does not count them."""
    for file in _counters(root):
        try:
            text = file.read_text()
        except OSError:
            continue
        match = re.search(r"^oom_kill (\d+)$", text, re.M)
        if match is not None:
            return int(match[1])
    return None


def _counters(root: Path) -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        base = root if not controllers else root / "memory" if "memory" in controllers.split(",") else None
        if base is None:
            continue
        # Inside a container the path is the host's, and the group's own files lie at the mount.
        found += [folder / name for folder in (base / path.lstrip("/"), base) for name in EVENTS]
    return found
