"""Stacks of another process by py-spy, an optional program that reads its memory."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor import process
from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import Thread

SECONDS = 10.0
"""For one dump; reading a large process whose pages were swapped out takes seconds."""
ATTEMPTS = 4
"""A process that runs on while it is read gives a torn stack now and then."""
FRAME_LIMIT = 400
THREAD_LIMIT = 512
TEXT_LIMIT = 512
REFUSED = ("permission denied", "operation not permitted", "eperm", "os error 1)", "os error 13)")
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True, slots=True)
class Dump:
    """The threads of a process, or why there are none and what would allow it."""

    threads: tuple[Thread, ...] = ()
    problem: str | None = None
    remedy: str | None = None


def program() -> str | None:
    """py-spy beside this interpreter, else in PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump(pid: int) -> Dump:
    """The stacks of a process that goes on meanwhile; it is not stopped, and a stopped one can be read."""
    found = program()
    if found is None:
        return Dump(
            problem="py-spy is not installed",
            remedy=f"{sys.executable} -m pip install 'fsdp-doctor[live]'",
        )
    last = Dump(problem="no answer")
    for _ in range(ATTEMPTS):
        outcome = process.run([found, "dump", "--json", "--nonblocking", "--pid", str(pid)], SECONDS)
        if outcome.ok:
            threads = parse(outcome.stdout)
            if threads:
                return Dump(threads)
            last = Dump(problem="py-spy saw no Python threads")
            continue
        last = _refusal(outcome, pid, found)
        if last.remedy is not None or outcome.timed_out:
            break
    return last


def parse(raw: bytes) -> tuple[Thread, ...]:
    """The threads of `py-spy dump --json`; nothing where the text is no such answer."""
    try:
        listed = json.loads(raw)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(listed, list):
        return ()
    return tuple(t for entry in listed[:THREAD_LIMIT] if (t := _thread(entry)) is not None)


def _thread(entry: object) -> Thread | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("frames"), Sequence):
        return None
    frames = [f for e in entry["frames"][:FRAME_LIMIT] if (f := _frame(e)) is not None]
    name = entry.get("thread_name")
    main = name == "MainThread" or (name is None and entry.get("os_thread_id") == entry.get("pid"))
    return Thread(tuple(reversed(frames)), str(name)[:TEXT_LIMIT] if name else "", main)


def _frame(entry: object) -> Frame | None:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return None
    file, line = entry.get("filename"), entry.get("line")
    return Frame(
        entry["name"][:TEXT_LIMIT],
        file[:TEXT_LIMIT] if isinstance(file, str) else "",
        line if isinstance(line, int) and line > 0 else None,
    )


def _refusal(outcome: process.Outcome, pid: int, found: str) -> Dump:
    told = outcome.stderr.decode("utf-8", "replace")
    lines = [w.strip() for w in told.splitlines() if w.strip()]
    if any(w in told.lower() for w in REFUSED):
        return Dump(problem=f"not allowed to look into process {pid}{_why()}", remedy=_remedy(pid, found))
    if outcome.timed_out or outcome.abandoned:
        return Dump(problem=f"py-spy got no answer from process {pid} in {outcome.seconds:.0f} s")
    causes = [w for w in lines if not w.startswith(("Caused by", "Stack backtrace", "Reason"))]
    return Dump(problem=f"py-spy: {causes[0][:200] if causes else outcome.problem}")


def _why() -> str:
    scope = _scope()
    return f" (kernel.yama.ptrace_scope is {scope})" if scope not in (None, "0") else ""


def _scope() -> str | None:
    try:
        return PTRACE_SCOPE.read_text().strip()
    except OSError:
        return None


def _remedy(pid: int, found: str) -> str:
    """The command that would allow it. In a container only whoever starts it can."""
    if os.geteuid() != 0:
        return f"sudo {found} dump --pid {pid}"
    if _scope() in ("1", "2", "3"):
        return "sysctl kernel.yama.ptrace_scope=0"
    return "docker run --cap-add SYS_PTRACE …  (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
