"""Asks the system what may hang: `python -I -S system_child.py PART [ARGUMENT…]`, standard library only.

Prints one JSON list per line, `[kind, name, answer]`, as soon as each answer is there: what a dead file
server holds up does not take the other answers with it. Parts: `paths`, `nodes`, `names`, `log`, `units`.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

KMSG = "/dev/kmsg"
RECORD = 8192
"""Bytes that hold any record of the kernel's log."""
LOG_LIMIT = 8 << 20
"""Characters of the log that are kept: the youngest."""
READER_SECONDS = 8.0
JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-iso", "-n", "100000")
BOOT = "Linux version "
SPACE = ("f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_favail")

_writing = threading.Lock()


def report(kind: str, name: str, answer: object) -> None:
    """Write one line, whole."""
    data = (json.dumps([kind, name, answer]) + "\n").encode()
    with _writing:
        while data:
            data = data[os.write(1, data) :]


def each(ask: Callable[[str], None], names: Iterable[str]) -> None:
    """Ask about each name in a thread of its own and wait for all."""
    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in dict.fromkeys(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def path(name: str) -> None:
    """What is at a path and how much space its file system has."""
    report("path", name, path_facts(name))


def path_facts(name: str) -> dict[str, Any]:
    """Existence, kind, permission and space of a path or of the nearest folder above it."""
    nearest, error = name, None
    while True:
        try:
            os.stat(nearest)
            break
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENOTDIR):
                error = problem.strerror
            above = os.path.dirname(nearest.rstrip("/"))
            if above in (nearest, ""):
                return {"exists": None, "error": problem.strerror}
            nearest = above
    here = nearest == name
    answer: dict[str, Any] = {
        "exists": True if here else None if error else False,
        "is_dir": os.path.isdir(name) if here else None,
        "nearest": nearest,
        "real": os.path.realpath(nearest),
        "writable": os.access(nearest, os.W_OK | os.X_OK),
        "error": error,
    }
    try:
        space = os.statvfs(nearest)
        answer["space"] = {k: getattr(space, k) for k in SPACE}
    except OSError as problem:
        answer["error"] = answer["error"] or problem.strerror
    return answer


def node(name: str) -> None:
    """Whether a device node may be opened for reading and writing; a device's own trouble is no refusal."""
    if not os.access(name, os.R_OK | os.W_OK):
        report("node", name, False)
        return
    try:
        # A control group refuses what the mode of the file allows: only opening shows that.
        os.close(os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        report("node", name, False)
    except OSError:
        report("node", name, None)
    else:
        report("node", name, True)


def resolve(name: str) -> None:
    """Addresses of a name in the resolver's order; none for a name that it does not know."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    report("name", name, list(dict.fromkeys(str(entry[4][0]) for entry in found)))


def log() -> None:
    """The kernel's log from the first reader that is allowed to; of a cut ring buffer, the journal's copy."""
    problems: list[str] = []
    text = kmsg(problems)
    if text is None:
        text = command(("dmesg",), problems)
        if text is not None:
            report("log", "dmesg", text[-LOG_LIMIT:])
    else:
        report("log", KMSG, text[-LOG_LIMIT:])
    if text is None or BOOT not in text[:4096]:
        journal = command(JOURNAL, problems)
        if journal and (text is None or BOOT in journal[:4096]):
            report("log", "journalctl -k", journal[-LOG_LIMIT:])
            return
    if text is None:
        report("unreadable", "log", "; ".join(problems))


def kmsg(problems: list[str]) -> str | None:
    """All records of /dev/kmsg; None if it may not be read."""
    try:
        device = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        problems.append(f"{KMSG}: {error.strerror}")
        return None
    records: list[bytes] = []
    size = 0
    while size < 4 * LOG_LIMIT:
        try:
            record = os.read(device, RECORD)
        except BrokenPipeError:  # the record was overwritten while it was due
            continue
        except BlockingIOError:
            break
        except OSError as error:
            problems.append(f"{KMSG}: {error.strerror}")
            return None
        if not record:
            break
        records.append(record)
        size += len(record)
    os.close(device)
    return b"".join(records).decode("utf-8", "replace")


def command(arguments: tuple[str, ...], problems: list[str]) -> str | None:
    """What a reader of the log prints; None if it fails."""
    try:
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=READER_SECONDS, check=False
        )
    except FileNotFoundError:
        problems.append(f"no {arguments[0]}")
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        problems.append(f"{arguments[0]}: {getattr(error, 'strerror', None) or 'no answer'}")
        return None
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 or not output.strip():
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        problems.append(f"{arguments[0]}: {last[0][:200] if last else 'no message may be read'}")
        return None
    return output


def units(names: list[str]) -> None:
    """State of systemd's units: the active state, or not-found."""
    output = command(("systemctl", "show", "--property=Id,LoadState,ActiveState", *names), [])
    for block in (output or "").split("\n\n"):
        found = dict(line.partition("=")[::2] for line in block.splitlines())
        name = found.get("Id", "").rpartition(".service")[0]
        missing = found.get("LoadState") == "not-found"
        if name:
            report("unit", name, "not-found" if missing else found.get("ActiveState", "unknown"))


def main(arguments: list[str]) -> None:
    """Answer one part."""
    part, names = arguments[0], arguments[1:]
    if part == "log":
        log()
    elif part == "units":
        units(names)
    else:
        each({"paths": path, "nodes": node, "names": resolve}[part], names)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    # A thread that hangs must not hold up the end.
    os._exit(0)
