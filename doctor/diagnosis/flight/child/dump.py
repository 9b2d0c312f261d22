"""One file to one JSON line: what kind of file it is, and a dump's columns in base64."""

from __future__ import annotations

import base64
import gzip
import io
import os
import re
import zlib
from array import array

from . import large_snapshot, plain, snapshot, stream, text_form
from .columns import Columns, whole, words

SIZE_LIMIT = 512 << 20
LARGE = 64 << 20
"""Bytes from which a snapshot of memory is not read whole: its objects take five times as many."""
GROUPS = 4096
_RANKS = re.compile(r"^\[\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?\]$")
_STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def describe(path: str) -> dict[str, object]:
    """What a file holds. `problem` and `kind` say why it is no dump; never raises but for lack of memory."""
    try:
        if os.path.getsize(path) > LARGE and (large := _large(path)) is not None:
            return large
        data = _read(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return _no("unreadable", getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:200])
    if not data.strip():
        return _no("unreadable", "the file is empty: the rank ended before it wrote its dump")
    form = "pickle" if data[:1] == b"\x80" else "json" if data.lstrip()[:1] in (b"{", b"[") else ""
    if not form:
        return _no("other", "neither a pickle as torch writes it nor JSON")
    cut = ""
    try:
        if data.startswith(stream.START) and (told := _streamed(data)) is not None:
            return told
        try:
            found = plain.load(data) if form == "pickle" else text_form.load(data)
        except plain.Cut as error:
            cut = str(error)
            found = plain.salvage(data) if form == "pickle" else text_form.salvage(data)
    except plain.Refused as error:
        return _no("refused", f"a pickle that is more than data: {error}; nothing of it was run")
    except plain.Cut:
        return _no("unreadable", f"cut or damaged: {cut}")
    except RecursionError:
        return _no("unreadable", "nested too deep for a dump")
    return judged(found, form, cut)


def _no(kind: str, problem: str) -> dict[str, object]:
    return {"kind": kind, "problem": problem}


def _large(path: str) -> dict[str, object] | None:
    """The answer for a large snapshot of memory; None for anything else."""
    try:
        return large_snapshot.read(path)
    except plain.Refused as error:
        return _no("refused", f"a pickle that is more than data: {error}; nothing of it was run")
    except (plain.Cut, RecursionError):
        return None


def _read(path: str) -> bytes:
    size = os.path.getsize(path)
    if size > SIZE_LIMIT:
        raise ValueError(f"larger than {SIZE_LIMIT >> 20} MiB")
    with open(path, "rb") as file:
        data = file.read(size)  # as much as it may be would be allocated at once
    if data[:2] != b"\x1f\x8b":
        return data
    whole = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        while part := packed.read(1 << 20):
            whole += part
            if len(whole) > SIZE_LIMIT:
                raise ValueError(f"larger than {SIZE_LIMIT >> 20} MiB when unpacked")
    return bytes(whole)


def judged(found: object, form: str, cut: str) -> dict[str, object]:
    """What an object that a file held is: a dump in columns, or why it is none."""
    root = {"entries": found, "version": "1.0"} if type(found) is list else found
    if type(root) is not dict:
        return _no("other", "not a Flight Recorder dump")
    if "segments" in root and ("device_traces" in root or "allocator_settings" in root or cut):
        summed = snapshot.summed(root, form, cut)
        return summed or _no("other", "has segments, but none as a snapshot of CUDA memory holds them")
    entries = root.get("entries")
    if type(entries) is not list:
        known = {"pg_config", "pg_status"} | ({"comm_lib_version", "version"} if cut else set())
        if root.keys() & known:
            entries = []
        else:
            return _no("other", "not a Flight Recorder dump")
    columns = Columns()
    for entry in entries:
        columns.add(entry)
    return told(root, columns, form, cut, bool(entries))


def _streamed(data: bytes) -> dict[str, object] | None:
    """A dump in torch's own form; None where it is not quite that, and the general way is to be taken."""
    reader = stream.Stream(data)
    try:
        whole = reader.run()
    except stream.Unsuited:
        return None
    if not len(reader.columns.sequence):
        return None
    return told(reader.root, reader.columns, "pickle", "" if whole else "the bytes end", True)


def told(
    root: dict[object, object], columns: Columns, form: str, cut: str, entries: bool
) -> dict[str, object]:
    """The answer for a dump."""
    columns.close_batches()
    if not len(columns.sequence) and columns.bad:
        return _no("other", "holds a list of entries, but none as the Flight Recorder writes them")
    if not (entries or root.keys() & {"pg_config", "pg_status"} or cut):
        return _no("other", "not a Flight Recorder dump")
    return {
        "kind": "dump",
        "form": form,
        "cut": cut,
        "version": words(root.get("version")) or "?",
        "library": words(root.get("comm_lib_version")),
        "config": _config(root.get("pg_config")),
        "status": _status(root.get("pg_status")),
        "groups": [[*key, columns.timeouts.get(n)] for key, n in columns.groups.items()][:GROUPS],
        "operations": columns.operations,
        "sites": columns.sites,
        "first_record": columns.first_record or 0,
        "bad": columns.bad,
        "columns": {
            name: _packed(getattr(columns, name))
            for name in ("group", "sequence", "p2p", "operation", "site", "state", "created")
        },
    }


def _packed(column: array[int]) -> str:
    return base64.b64encode(column.tobytes()).decode()


def _config(value: object) -> list[list[object]]:
    """[name, description, ranks] of each group; torch 2.3 wrote {number: ranks}."""
    if type(value) is not dict:
        return []
    found: list[list[object]] = []
    for name, group in list(value.items())[:GROUPS]:
        if type(group) is dict:
            found.append(
                [
                    words(group.get("name")) or words(name),
                    words(group.get("desc")),
                    _ranks(group.get("ranks")),
                ]
            )
        else:
            found.append([str(whole(name)) if type(name) is int else words(name), "", _ranks(group)])
    return found


def _ranks(value: object) -> list[int]:
    if type(value) is str:
        if not _RANKS.match(value):
            return []
        value = [int(n) for n in value.strip("[] ").split(",") if n.strip()]
    if type(value) not in (list, tuple):
        return []
    return [n for n in map(whole, value) if n is not None and 0 <= n < 1 << 30]  # type: ignore[call-overload]


def _status(value: object) -> dict[str, list[int | None]]:
    if type(value) is not dict:
        return {}
    return {
        str(number)[:20]: [whole(status.get(key)) for key in _STATUS]
        for number, status in list(value.items())[:GROUPS]
        if type(status) is dict and type(number) in (str, int)
    }
