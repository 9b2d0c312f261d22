"""The journals that ranks leave, read while they are written and after any end."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_doctor.codec import FormatError, from_json
from fsdp_doctor.subjects.probe import STAGES, RankError, RankMeasurement

PROGRESS = struct.Struct("=QQdd")
LINE_LIMIT = 8 << 20
STACK_LIMIT = 16 << 10
STACK_KEPT = 1000
"""Characters of a stack, the innermost calls, that a finding can show."""
LISTS = ("work", "copies", "collectives", "pairs")
DUMP = re.compile(r"^(?=Stack |Timeout |Fatal Python error)", re.MULTILINE)
"""Where faulthandler begins a dump."""
OUT_OF_TIME = "Timeout ("
"""How the stack of a rank begins that its own watchdog ended."""


@dataclass(frozen=True, slots=True)
class Steps:
    """In how many common steps a rank was, and how many it left."""

    entered: int = 0
    left: int = 0

    @property
    def waiting(self) -> bool:
        """Whether the rank is in a step, waiting for the others."""
        return self.entered > self.left


@dataclass(slots=True)
class Journal:
    """One rank's lines so far."""

    folder: Path
    rank: int
    fields: dict[str, object] = field(default_factory=dict)
    lists: dict[str, list[object]] = field(default_factory=lambda: {k: [] for k in LISTS})
    stage: str = STAGES[0]
    detail: str = ""
    error: RankError | None = None
    """The first one: what a rank says later is a consequence."""
    looked: bool = False
    """The rank waits for what is to be measured again."""
    begun: bool = False
    skipped: list[str] = field(default_factory=list)
    _offset: int = 0
    _rest: bytes = b""

    def poll(self) -> None:
        """Take in what was written since."""
        try:
            with (self.folder / f"rank-{self.rank}.jsonl").open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.feed(lines)
        if len(self._rest) > LINE_LIMIT:
            self._rest = b""

    def feed(self, lines: list[bytes]) -> None:
        """Take in whole lines; one that is no JSON object is dropped."""
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, Mapping):
                self._take(value)

    def _take(self, value: Mapping[str, object]) -> None:
        self.begun = True
        stage, told, entry, error = (value.get(k) for k in ("stage", "set", "entry", "error"))
        if isinstance(stage, str):
            self.stage, self.detail = stage, str(value.get("detail") or "")
        if isinstance(told, Mapping):
            self.fields.update(told)
        kind = value.get("add")
        if isinstance(kind, str) and kind in self.lists and isinstance(entry, Mapping):
            self.lists[kind].append(entry)
        if isinstance(error, Mapping) and self.error is None:
            self.error = RankError(str(error.get("kind", "")), str(error.get("text", "")))
        if "looked" in value:
            self.looked = True
        if isinstance(value.get("skipped"), str):
            self.skipped.append(str(value["skipped"]))

    @property
    def done(self) -> bool:
        """Whether the rank ran through."""
        return self.stage == STAGES[-1] and self.error is None

    @property
    def pid(self) -> int | None:
        """The rank's process."""
        pid = self.fields.get("pid")
        return pid if isinstance(pid, int) else None

    def steps(self) -> Steps:
        """How far the rank is, at this moment."""
        try:
            data = (self.folder / f"rank-{self.rank}.progress").read_bytes()
        except OSError:
            return Steps()
        if len(data) < PROGRESS.size:
            return Steps()
        entered, left, _, _ = PROGRESS.unpack_from(data)
        return Steps(entered, left)

    def stack(self) -> str | None:
        """The last Python stack that the rank left."""
        text = _tail(self.folder / f"rank-{self.rank}.stack", STACK_LIMIT)
        parts = [p for p in DUMP.split(text) if p.strip()]
        return parts[-1].strip()[:STACK_KEPT] if parts else None

    @property
    def out_of_time(self) -> bool:
        """Whether the rank's own watchdog ended it."""
        return OUT_OF_TIME in _tail(self.folder / f"rank-{self.rank}.stack", STACK_LIMIT)

    def log(self, limit: int = 4 << 10) -> str:
        """The end of what the rank wrote to standard output and standard error."""
        return _tail(self.folder / f"rank-{self.rank}.log", limit).strip()

    def measurement(self, **more: object) -> RankMeasurement:
        """Everything as the contract has it; a list with an entry that does not fit is left out."""
        base = {**self.fields, "rank": self.rank, "stage": self.stage, "detail": self.detail, **more}
        error = more.pop("error", self.error)
        base["error"] = None if error is None else {"kind": error.kind, "text": error.text}  # type: ignore[attr-defined]
        kept = {k: v for k, v in self.lists.items() if _fits({"rank": self.rank, k: v})}
        whole = {**base, **kept}
        return from_json(RankMeasurement, whole if _fits(whole) else {"rank": self.rank, **kept})


def _fits(value: Mapping[str, object]) -> bool:
    try:
        from_json(RankMeasurement, value)
    except FormatError:
        return False
    return True


def _tail(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
