"""Records of Slurm's accounting: tables of sacct, `scontrol show job`, seff."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fsdp_doctor.diagnosis import markers
from fsdp_doctor.diagnosis.blocks import Line
from fsdp_doctor.subjects.accounting import Account

MOST_ROWS = 20_000
MOST_NODES = 4096
SHOWN = 40
"""Lines of `scontrol show job` and of seff that belong to one job, at most."""
STATES = (
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "TIMEOUT",
    "DEADLINE",
    "FAILED",
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "RUNNING",
    "PENDING",
    "REQUEUED",
    "SUSPENDED",
)
_ID = re.compile(r"(?P<job>\d+(?:[_+][\w\[\],%-]+)?)(?:\.(?P<step>[\w+-]+))?")
_STATE = re.compile(r"(?P<word>[A-Z_]{4,})\+?(?: by (?P<user>\d+))?")
_EXIT = re.compile(r"(?P<code>\d+):(?P<signal>\d+)")
_PAIR = re.compile(r"(\w+)=(\S+)")
_NODES = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?(?:,|$)")
_PADDED = re.compile(r"-{3,}")


def read(
    code: str, fields: Mapping[str, str], line: Line, above: Iterable[Line], below: Iterator[Line]
) -> tuple[list[Account], list[int]]:
    """The records that a marker found, and where the lines begin that were read for them."""
    if code == markers.ACCOUNT_TABLE:
        return _table(line, below)
    if code == markers.ACCOUNT_JOB:
        return _shown(line, above, below), []
    if code == markers.ACCOUNT_SUMMARY:
        return _summary(fields, line, above, below), []
    found = _account(fields["job"], fields["state"], f"{fields.get('code') or ''}:{fields.get('sig') or 0}")
    return ([_at(found, line)] if found is not None else []), []


def _at(account: Account, line: Line) -> Account:
    return replace(account, line=line.number, text=" ".join(line.raw.split())[:300])


def _account(identity: str, state: str, ended: str = "", nodes: str = "") -> Account | None:
    """A record of the texts of its columns; None where they are none."""
    who, what = _ID.fullmatch(identity), _STATE.fullmatch(state)
    if who is None or what is None:
        return None
    word = next((s for s in STATES if s.startswith(what["word"])), what["word"])
    how = _EXIT.fullmatch(ended)
    return Account(
        who["job"],
        word,
        who["step"] or "",
        int(how["code"]) if how else None,
        int(how["signal"]) if how else None,
        node_names(nodes),
        int(what["user"]) if what["user"] else None,
    )


def node_names(text: str) -> tuple[str, ...]:
    """The names in `gn[08-10,12],login1`; none of "None assigned"."""
    names: list[str] = []
    for name, numbers in _NODES.findall("" if text.startswith(("None", "(null)")) else text.strip()):
        if not numbers:
            names.append(name)
        for part in numbers.split(",") if numbers else ():
            low, _, high = part.partition("-")
            if low.isdigit() and (high or low).isdigit():
                last = min(int(high or low), int(low) + MOST_NODES)
                names += [f"{name}{i:0{len(low)}d}" for i in range(int(low), last + 1)]
    return tuple(names[:MOST_NODES])


# sacct


def _table(header: Line, below: Iterator[Line]) -> tuple[list[Account], list[int]]:
    """The rows of a table: columns that are parted by a character, or that stand under dashes."""
    mark = next((c for c in "|,;\t" if c in header.raw), "")
    names = [n.strip() for n in header.raw.split(mark)] if mark else header.raw.split()
    spans: list[tuple[int, int]] = []
    accounts: list[Account] = []
    taken: list[int] = []
    for line in below:
        if not mark and not spans and not accounts and set(line.raw) <= set("- ") and line.raw.strip():
            spans = [m.span() for m in _PADDED.finditer(line.raw)]
            continue
        row = _cells(line.raw, mark, spans, names)
        found = _account(
            row.get("JobID") or row.get("JobIDRaw", ""),
            row.get("State", ""),
            row.get("ExitCode", ""),
            row.get("FailedNode") or row.get("NodeList", ""),
        )
        if found is None or len(accounts) >= MOST_ROWS:
            break
        if row.get("MaxRSS"):
            asked = f" of {row['ReqMem']}" if row.get("ReqMem") else ""
            found = replace(found, memory=f"MaxRSS {row['MaxRSS']}{asked}")
        accounts.append(_at(found, line))
        taken.append(line.at)
    return accounts, taken


def _cells(raw: str, mark: str, spans: list[tuple[int, int]], names: list[str]) -> dict[str, str]:
    if mark:
        cells = raw.split(mark)
    elif spans:
        cells = [raw[low:high] for low, high in spans]
    else:
        cells = raw.split()
    return {n: c.strip() for n, c in zip(names, cells, strict=False)}


# one job


def _shown(line: Line, above: Iterable[Line], below: Iterator[Line]) -> list[Account]:
    """What `scontrol show job` shows; `line` holds JobState."""
    pairs = dict(_PAIR.findall(line.raw))
    for other in above:
        if other.raw.startswith("JobId="):
            pairs.update(_PAIR.findall(other.raw))
    for count, other in enumerate(below):
        if count > SHOWN or not other.raw.strip() or other.raw.startswith("JobId="):
            break
        for name, value in _PAIR.findall(other.raw):
            pairs.setdefault(name, value)
    found = _account(
        pairs.get("JobId", ""),
        pairs.get("JobState", ""),
        pairs.get("ExitCode", ""),
        pairs.get("NodeList", ""),
    )
    return [_at(found, line)] if found is not None else []


def _summary(
    fields: Mapping[str, str], line: Line, above: Iterable[Line], below: Iterator[Line]
) -> list[Account]:
    """What seff tells; `line` holds the state."""
    number = next((m[1] for a in above if (m := re.match(r"(?:Array )?Job ID: (\w+)", a.raw))), "0")
    found = _account(number, fields["state"], f"{fields['code']}:0")
    if found is None:
        return []
    memory = ""
    for count, other in enumerate(below):
        if count > SHOWN or not other.raw.strip():
            break
        if m := re.match(r"Memory Efficiency: (\S+ of .*)", other.raw):
            memory = m[1].strip()[:60]
    return [replace(_at(found, line), memory=memory)]
