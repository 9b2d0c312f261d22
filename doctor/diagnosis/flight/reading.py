"""Dumps from disk: read in children, a few files each, and put together with shared tables."""

from __future__ import annotations

import base64
import json
import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from fsdp_doctor import process
from fsdp_doctor.diagnosis.flight.names import candidates, rank_of
from fsdp_doctor.diagnosis.flight.settling import settle
from fsdp_doctor.subjects.flight import (
    CallFrame,
    CallSite,
    Entries,
    FlightDump,
    FlightDumps,
    Operation,
    RecordedGroup,
    Unread,
)

CHILD = Path(__file__).parent / "child" / "start.py"
SHARE_BYTES = 24 << 20
SHARE_FILES = 48
"""Of one child: enough to hide its start, little enough that a bad file costs few others a second reading."""
FEWEST_FILES = 8
MEMORY = 256 << 20
MEMORY_PER_BYTE = 40
"""Address space of a child: a base, and what the objects of its largest file may take."""
MEMORY_LIMIT = 8 << 30
OUTPUT = 512 << 20
WORKERS = 8
ALONE = 12
"""Seconds for one file that made its child fail."""
COLUMNS = {
    "group": "I",
    "sequence": "q",
    "p2p": "B",
    "operation": "I",
    "site": "I",
    "state": "B",
    "created": "q",
}
NAMES: Mapping[str, str] = MappingProxyType({})
_STRAY = -1
"""Stands for the rank of a file whose name has no number."""

Answer = dict[str, object]


def read(paths: Sequence[str], *, deadline: float = 120.0, names: Mapping[str, str] = NAMES) -> FlightDumps:
    """The dumps among `paths`, which are files and folders. Nothing in them is run.

    `deadline` counts seconds for all of them; what was not read by then is named in `unread`. `names` says
    where a file comes from that was unpacked.
    """
    files = candidates(paths)
    tables = Tables()
    dumps: list[FlightDump] = []
    unread: list[Unread] = []
    for path, answer in _answers(files, monotonic() + deadline):
        name = names.get(path)
        if answer.get("kind") == "dump":
            dump = tables.dump(path, answer)
            # When it was unpacked says nothing of when it was written.
            dumps.append(dump if name is None else replace(dump, path=name, modified=None))
        else:
            unread.append(Unread(name or path, str(answer.get("problem")), str(answer.get("kind"))))
    kept, dropped, notes = settle(dumps)
    return FlightDumps(kept, tuple(tables.operations), tuple(tables.sites), (*unread, *dropped), notes)


def _answers(files: Sequence[str], until: float) -> Iterator[tuple[str, Answer]]:
    workers = min(WORKERS, _processors())
    with ThreadPoolExecutor(workers) as pool:
        # Few files are worth two children as well.
        count = min(SHARE_FILES, max(FEWEST_FILES, -(-len(files) // workers)))
        for share, answers in zip(
            shares := list(_shares(files, count)), pool.map(lambda s: ask(s, until), shares), strict=True
        ):
            yield from zip(share, answers, strict=True)


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _shares(files: Sequence[str], count: int) -> Iterator[list[str]]:
    share: list[str] = []
    size = 0
    for path in files:
        bytes_here = _size(path)
        if share and (size + bytes_here > SHARE_BYTES or len(share) >= count):
            yield share
            share, size = [], 0
        share.append(path)
        size += bytes_here
    if share:
        yield share


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def ask(share: Sequence[str], until: float) -> list[Answer]:
    """One answer per file. Where the child fails, the file it failed at is read alone, and so is the rest."""
    left = until - monotonic()
    if left <= 0:
        return [{"kind": "unreadable", "problem": "no time was left to read it"}] * len(share)
    memory = min(MEMORY + MEMORY_PER_BYTE * max(map(_size, share)), MEMORY_LIMIT)
    seconds = min(left, ALONE + 3.0 * len(share) if len(share) > 1 else ALONE + _size(share[0]) / (2 << 20))
    argv = [sys.executable, "-I", "-S", str(CHILD), str(memory), *map(os.path.abspath, share)]
    outcome = process.run(argv, seconds, stdout_limit=OUTPUT)
    answers: list[Answer] = []
    for line in outcome.stdout.splitlines():
        try:
            answers.append(json.loads(line))
        except ValueError:
            break
    if len(answers) >= len(share):
        return answers[: len(share)]
    if len(share) == 1:
        return [{"kind": "unreadable", "problem": f"reading it failed: {outcome.problem or 'no answer'}"}]
    bad = len(answers)
    return [
        *answers,
        *ask(share[bad : bad + 1], until),
        *(ask(share[bad + 1 :], until) if share[bad + 1 :] else []),
    ]


class Tables:
    """What the dumps share, and how each dump's own numbers become numbers into it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.sites: list[CallSite] = []
        self._operation_numbers: dict[Operation, int] = {}
        self._site_numbers: dict[CallSite, int] = {}
        self._raw: dict[str, int] = {}

    def dump(self, path: str, answer: Answer) -> FlightDump:
        """A dump from a child's answer."""
        columns = {n: _column(answer["columns"][n], code) for n, code in COLUMNS.items()}  # type: ignore[index]
        operations = [self._operation(raw) for raw in answer["operations"]]  # type: ignore[attr-defined]
        sites = [self._site(raw) for raw in answer["sites"]]  # type: ignore[attr-defined]
        columns["operation"] = array("I", map(operations.__getitem__, columns["operation"]))
        columns["site"] = array("I", map(sites.__getitem__, columns["site"]))
        rank = rank_of(path)
        groups, index = _groups(answer)
        columns["group"] = array("I", map(index.__getitem__, columns["group"]))
        bad = int(str(answer["bad"]))
        cut = str(answer["cut"])
        if bad and not cut:
            cut = f"{bad} entries lack what every version of the recorder writes"
        return FlightDump(
            _STRAY if rank is None else rank,
            path,
            str(answer["version"]),
            str(answer["form"]),
            groups,
            Entries(**columns),
            int(str(answer["first_record"])),
            str(answer["library"]),
            _size(path),
            _modified(path),
            cut,
        )

    def _operation(self, raw: list[object]) -> int:
        key = json.dumps(raw)
        known = self._raw.get(key)
        if known is None:
            backend, name, inputs, outputs, in_types, out_types, source, target = raw
            operation = Operation(
                str(backend), str(name), _shapes(inputs), _shapes(outputs), tuple(in_types), tuple(out_types),  # type: ignore[arg-type]
                source, target,  # type: ignore[arg-type]
            )  # fmt: skip
            known = self._raw[key] = len(self.operations)
            self.operations.append(operation)
        return known

    def _site(self, raw: list[list[object]]) -> int:
        site = tuple(CallFrame(str(f[0]), str(f[1]), int(str(f[2]))) for f in raw)
        known = self._site_numbers.setdefault(site, len(self.sites))
        if known == len(self.sites):
            self.sites.append(site)
        return known


def _column(text: str, code: str) -> array[int]:
    column = array(code)
    column.frombytes(base64.b64decode(text))
    return column


def _shapes(raw: object) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in raw)  # type: ignore[attr-defined]


def _groups(answer: Answer) -> tuple[tuple[RecordedGroup, ...], list[int]]:
    """Groups with entries and groups without, and the index of each of the child's groups among them.

    The recorder names a group in entries by its name, in `pg_status` by a number of its own (`pg_id`).
    """
    config: dict[str, tuple[str, list[int]]] = {n: (d, r) for n, d, r in answer["config"] if n or r}  # type: ignore[attr-defined]
    status: dict[str, list[int | None]] = answer["status"]  # type: ignore[assignment]
    found: list[RecordedGroup] = []
    for name, description, number, timeout in answer["groups"]:  # type: ignore[attr-defined]
        known = config.pop(name, (description, []))
        enqueued, started, completed = status.get(number, [None, None, None])
        found.append(
            RecordedGroup(
                name, description or known[0], tuple(sorted(known[1])), timeout, enqueued, started, completed
            )
        )
    index = list(range(len(found)))
    found += [RecordedGroup(n, d, tuple(sorted(r))) for n, (d, r) in config.items() if r]
    return tuple(found), index


def _modified(path: str) -> float | None:
    try:
        return os.path.getmtime(path)
    except OSError:
        return None
