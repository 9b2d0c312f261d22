"""The JSON parts of a recording, checked: whoever wrote them, what comes out has the types it should have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn, TypeGuard

from fsdp_doctor.facts.links import MAX_NAME
from fsdp_doctor.facts.source import Json, Manifest
from fsdp_doctor.facts.trees import MAX_FILE, RecordingError, Tree, parts_of
from fsdp_doctor.subjects.fact import Unknown

SCHEMA = "fsdp-doctor-recording/1"
MAX_JSON_DEPTH = 32
MAX_TEXT = 4096
"""Characters of a text of the manifest; the longest is a path, and every result repeats the host."""
MAX_RANKS = 1 << 20
"""Ranks of a job: what a recording claims beyond it would only cost memory to list as missing."""


def load(tree: Tree, name: str) -> Json | Unknown:
    """A JSON file of the tree; unknown with its reason where it is absent or damaged."""
    raw = tree.read(name, MAX_FILE)
    if isinstance(raw, Unknown):
        return raw
    try:
        value: Json = json.loads(raw.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
        return _plain(value, 0)
    except UnicodeDecodeError:
        return Unknown(f"{name} of the recording is not UTF-8")
    except RecursionError:
        return Unknown(f"{name} of the recording is nested too deeply")
    except ValueError as error:
        return Unknown(f"{name} of the recording is not valid JSON: {error}")


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text[:40])
    return value


def _plain(value: Json, depth: int) -> Json:
    """The value without half characters, which no output could encode."""
    if depth > MAX_JSON_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {_text(k): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, depth + 1) for v in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def manifest_of(part: Json | Unknown) -> Manifest:
    """The checked manifest. Raises `RecordingError` where this is no recording that can be read."""
    if isinstance(part, Unknown):
        raise RecordingError("no manifest.json: not a recording" if part.absent else part.reason)
    if not isinstance(part, Mapping):
        raise RecordingError("manifest.json is not an object: not a recording")
    schema = part.get("schema")
    if schema != SCHEMA:
        raise RecordingError(
            f"the recording has the format {str(schema)[:80]!r}; this version reads {SCHEMA!r}"
        )
    reasons = part.get("not_recorded")
    offset = part.get("clock_offset_seconds")
    if offset is not None and (isinstance(offset, bool) or not isinstance(offset, (int, float))):
        raise RecordingError("manifest.json: clock_offset_seconds is not a number")
    return Manifest(
        host=_text_field(part, "host"),
        rank=_count_field(part, "rank"),
        world_size=_count_field(part, "world_size"),
        created=_text_field(part, "created"),
        checkpoint_dir=_text_field(part, "checkpoint_dir"),
        clock_offset_seconds=None if offset is None else _as_float(offset),
        not_recorded={k: str(v) for k, v in reasons.items()} if isinstance(reasons, Mapping) else {},
        recorded=True,
    )


def extras_of(part: Json | Unknown) -> tuple[dict[str, tuple[int, int | None]], dict[str, str]]:
    """What no file of the recording can hold: sizes and owners of files by path, states of units."""
    table = part if isinstance(part, Mapping) else {}
    stats, units = table.get("stat"), table.get("units")
    owned: dict[str, tuple[int, int | None]] = {}
    for path, value in stats.items() if isinstance(stats, Mapping) else ():
        if isinstance(value, list) and len(value) == 2:
            size, uid = value
            if _is_count(size) and (uid is None or _is_count(uid)):
                owned[path.strip("/")] = (size, uid)
    states = units if isinstance(units, Mapping) else {}
    return owned, {k: v for k, v in states.items() if isinstance(v, str)}


def _is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise RecordingError("manifest.json: clock_offset_seconds is too large") from None


def _text_field(part: Mapping[str, Json], name: str) -> str | None:
    value = part.get(name)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if value is None:
        return None
    raise RecordingError(f"manifest.json: {name} is not text")


def _count_field(part: Mapping[str, Json], name: str) -> int | None:
    value = part.get(name)
    if value is None:
        return None
    if not _is_count(value) or value > MAX_RANKS:
        raise RecordingError(f"manifest.json: {name} is not a count from 0 to {MAX_RANKS}")
    return value


def links_of(part: Json | Unknown) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Links by path, and by folder the names in it that lead to one. Raises `RecordingError`."""
    if isinstance(part, Unknown):
        if part.absent:
            return {}, {}
        raise RecordingError(part.reason)
    if not isinstance(part, Mapping):
        raise RecordingError("links.json is not an object")
    links: dict[str, str] = {}
    below: dict[str, set[str]] = {}
    for key, target in part.items():
        path = key.strip("/")
        if not isinstance(target, str) or parts_of(path) is None or len(target) > MAX_NAME:
            raise RecordingError(f"links.json: {key[:80]!r} is no link")
        links[path] = target
        while path:
            parent, _, last = path.rpartition("/")
            known = parent in below
            below.setdefault(parent, set()).add(last)
            if known:
                break
            path = parent
    return links, below


def figures_of(value: Json) -> Mapping[str, int] | None:
    """One answer of statvfs; None where it holds anything but whole numbers."""
    if not isinstance(value, Mapping):
        return None
    figures = {k: v for k, v in value.items() if isinstance(v, int) and not isinstance(v, bool)}
    return figures if len(figures) == len(value) else None
