"""Lines of structured logging: the texts inside a JSON object, and what it says of rank, host and time."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fsdp_doctor.diagnosis.clocks import parse
from fsdp_doctor.diagnosis.prefixes import Prefix

MESSAGE_KEYS = ("message", "msg", "log", "text", "event", "MESSAGE", "textPayload", "body")
TRACE_KEYS = ("exc_info", "exception", "traceback", "stack_trace", "stack", "py_callstack", "error")
TIME_KEYS = ("time", "ts", "timestamp", "asctime", "@timestamp", "datetime")
RANK_KEYS = ("rank", "global_rank", "RANK")
LOCAL_KEYS = ("local_rank", "LOCAL_RANK")
NESTED_KEYS = ("extraInfo", "extra", "context", "fields", "labels")
"""Objects beside the message that loggers put more fields in."""
HOST_KEYS = ("host", "hostname", "node", "pod", "pod_name")
DEPTH = 3
EARLIEST, LATEST = 1e9, 4e9
"""Seconds since the epoch that a number has to lie between to be a time."""


def said(raw: str) -> tuple[list[str], Prefix] | None:
    """The texts of a line of structured logging, and what it says of its writer; None where it is none.

    A line of metrics, which names its writer and has no text, is its own text.
    """
    if not (raw.startswith("{") and raw.endswith("}")):
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    prefix = Prefix()
    texts = _texts(value, prefix)
    if not texts and (prefix.rank is not None or prefix.host is not None):
        texts = [raw]
    return (texts, prefix) if texts else None


def under(prefix: Prefix, outer: Prefix) -> Prefix:
    """What the layers around a message said, where the message says nothing itself."""
    for name in ("rank", "local_rank", "task", "host", "pid", "time", "stream"):
        if getattr(prefix, name) is None:
            setattr(prefix, name, getattr(outer, name))
    return prefix


def _texts(value: Mapping[str, object], prefix: Prefix, depth: int = 0) -> list[str]:
    texts: list[str] = []
    for name in (*MESSAGE_KEYS, *TRACE_KEYS):
        part = value.get(name)
        if isinstance(part, str):
            texts += part.rstrip("\n").split("\n")
        elif isinstance(part, dict) and depth < DEPTH:
            texts += _texts(part, prefix, depth + 1)
    for name in NESTED_KEYS:
        extra = value.get(name)
        if isinstance(extra, dict) and depth < DEPTH:
            texts += _texts(extra, prefix, depth + 1)
    _writer(value, prefix)
    return texts


def _writer(value: Mapping[str, object], prefix: Prefix) -> None:
    for name in RANK_KEYS:
        rank = value.get(name)
        if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10**6:
            prefix.rank = prefix.rank if prefix.rank is not None else rank
    for name in LOCAL_KEYS:
        local = value.get(name)
        if isinstance(local, int) and not isinstance(local, bool) and 0 <= local < 10**5:
            prefix.local_rank = prefix.local_rank if prefix.local_rank is not None else local
    for name in HOST_KEYS:
        if isinstance(host := value.get(name), str) and len(host) < 200:
            prefix.host = prefix.host or host
    for name in TIME_KEYS:
        time = value.get(name)
        if prefix.time is None and isinstance(time, str):
            prefix.time = parse(time) or _epoch(time)
        elif prefix.time is None and isinstance(time, (int, float)) and not isinstance(time, bool):
            prefix.time = _epoch(str(time))
    if isinstance(stream := value.get("stream"), str) and stream in ("stdout", "stderr"):
        prefix.stream = stream


def _epoch(text: str) -> float | None:
    """Seconds since the epoch of a number of seconds, milliseconds or nanoseconds."""
    try:
        value = float(text)
    except ValueError:
        return None
    if value > 1e17:
        value /= 1e9
    elif value > 1e11:
        value /= 1e3
    return value if EARLIEST < value < LATEST else None
