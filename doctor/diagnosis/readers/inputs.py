"""What was given: files and folders, in an order that does not depend on the file system."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_doctor.diagnosis.records import SourceScan

MAX_FILES = 50_000
MAX_DEPTH = 24
SKIPPED_FOLDERS = frozenset((".git", "__pycache__", "node_modules", ".venv"))
NEVER_TEXT = frozenset(
    (
        ".distcp",
        ".safetensors",
        ".pt",
        ".pth",
        ".bin",
        ".npy",
        ".npz",
        ".so",
        ".png",
        ".jpg",
        ".parquet",
        ".arrow",
        ".nsys-rep",
        ".pyc",
    )
)
STDIN = "-"
OWN = re.compile(rb'^\s*\{\s*"schema":\s*"fsdp-doctor[-/]')
"""How this tool's own JSON begins: a report quotes every failure and is none."""
RUN, JOURNAL = "run.json", "journal"
"""In a folder of `fsdp-doctor run`: what it is, and what it notes of itself."""


@dataclass(frozen=True, slots=True)
class Given:
    """One file to read; `problem` says why it cannot be."""

    path: str
    size: int = 0
    problem: str = ""
    named: bool = False
    """Given by name, and not found in a folder."""


def expand(paths: Sequence[str]) -> Iterator[Given]:
    """The files behind the paths that were given; folders are walked in natural order, links in them are not
    followed to folders.
    """
    count = 0
    for path in paths:
        for given in _expand(path, 0, True):
            count += 1
            if count > MAX_FILES:
                yield Given(path, problem=f"more than {MAX_FILES} files: the rest was not read")
                return
            yield given


def _expand(path: str, depth: int, named: bool) -> Iterator[Given]:
    if path == STDIN:
        yield Given(STDIN, named=True)
        return
    try:
        status = os.stat(path)
    except OSError as error:
        yield Given(path, problem=f"cannot be read: {error.strerror}", named=named)
        return
    if stat.S_ISDIR(status.st_mode):
        if depth > MAX_DEPTH:
            yield Given(path, problem=f"folders deeper than {MAX_DEPTH} are not read", named=named)
            return
        try:
            names = sorted(os.listdir(path), key=natural)
        except OSError as error:
            yield Given(path, problem=f"cannot be listed: {error.strerror}", named=named)
            return
        own = RUN in names and _is_own(os.path.join(path, RUN))
        for name in names:
            if own and name == JOURNAL:
                continue
            inner = os.path.join(path, name)
            if name in SKIPPED_FOLDERS or (os.path.islink(inner) and os.path.isdir(inner)):
                continue
            yield from _expand(inner, depth + 1, False)
    elif stat.S_ISREG(status.st_mode):
        if Path(path).suffix == ".json" and _is_own(path):
            if named:
                yield Given(
                    path, problem="is a report of fsdp-doctor and nothing that a job left", named=True
                )
        elif named or Path(path).suffix not in NEVER_TEXT:
            yield Given(path, status.st_size, named=named)
    elif named and (stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)):
        yield Given(path, 0, named=True)
    elif named:
        yield Given(path, problem="is no file", named=True)


def _is_own(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return OWN.match(file.read(256)) is not None
    except OSError:
        return False


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key by which `rank_10` comes after `rank_9`."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]


_ELASTIC = re.compile(
    r"(?:^|/)attempt_(?P<attempt>\d+)/(?P<local>\d{1,5})/(?:(?P<stream>stdout|stderr)\.log|error\.json)"
)
_LOCAL = re.compile(r"(?:^|[/_.-])local[-_]?rank[-_]?(?P<n>\d{1,5})(?=[/_.-]|$)", re.I)
_RANK = re.compile(r"(?:^|[/_.-])(?:global[-_]?)?rank[-_]?(?P<n>\d{1,6})(?=[/_.-]|$)", re.I)
_ATTEMPT = re.compile(r"(?:^|[/_.-])(?:attempt|restart)[-_]?(?P<n>\d{1,4})(?=[/_.-]|$)", re.I)
_HOST = re.compile(
    r"(?:^|/)(?P<host>(?:node|host|worker|gpu|pod)[-_]?[\w]*\d[\w-]*?)(?=/|\.(?:log|txt|out|err|gz|zst))"
)


def _last(pattern: re.Pattern[str], name: str) -> re.Match[str] | None:
    """The match nearest to the file itself: folders further out may be named after anything."""
    return max(pattern.finditer(name), key=re.Match.start, default=None)


def hints(name: str) -> SourceScan:
    """What a path tells of the lines in it: rank, local rank, attempt, stream, host."""
    scan = SourceScan(name)
    base = name.rsplit("/", 1)[-1]
    if found := _ELASTIC.search(name):
        scan.path_local, scan.path_attempt, scan.stream = (
            int(found["local"]),
            int(found["attempt"]),
            found["stream"],
        )
        scan.kind = "error file" if base == "error.json" else "log"
    elif found := _last(_LOCAL, name):
        scan.path_local = int(found["n"])
    elif found := _last(_RANK, name):
        scan.path_rank = int(found["n"])
    if not scan.path_attempt and (found := _last(_ATTEMPT, name)):
        scan.path_attempt = int(found["n"])
    if found := _HOST.search(name):
        scan.path_host = found["host"]
    if re.search(r"dmesg|kern(?:el)?\.log|syslog|messages$", base):
        scan.kind = "kernel log"
        scan.stream = "kernel"
    if scan.stream is None and (found := re.search(r"(stdout|stderr)|\.(out|err)$", base)):
        scan.stream = found[1] or {"out": "stdout", "err": "stderr"}[found[2]]
    return scan
