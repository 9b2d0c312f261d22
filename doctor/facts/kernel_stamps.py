"""Messages of the kernel's log without the stamps of dmesg, journalctl, syslog or /dev/kmsg."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone

KMSG = re.compile(r"^\d{1,4},(\d{1,20}),(\d{1,20}),[^;]{0,200};")
KMSG_FIELD = re.compile(r"^ [A-Z_]+=")
KMSG_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
LEVEL = re.compile(
    r"^(?:<\d{1,4}>|(?:kern|user|daemon|syslog|auth|local\d) *:"
    r"(?:emerg|alert|crit|err|warn|notice|info|debug) *: ?)"
)
UPTIME = re.compile(r"^\[\s{0,12}(\d{1,12}\.\d{1,9})\] ?")
BRACKET_DATE = re.compile(r"^\[\w{3} \w{3}\s+\d{1,2} [\d:]{8} \d{4}\] ?")
ISO = re.compile(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? ")
SHORT = re.compile(r"^([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d{1,9})? ")
HOST_KERNEL = re.compile(r"^\S{1,255} kernel(?:\[\d+\])?: ")
CALLER = re.compile(r"^\[\s{0,12}[TC]\d{1,9}\] ")
BOOT = "Linux version "
"""The first message of every boot."""
JOURNAL_NOTE = re.compile(r"^-- .* --$")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def messages(log: str) -> Iterator[tuple[str, float | None]]:
    """(text, seconds since boot) of each message, continuation lines joined to theirs.

    Where a format has wall-clock time only, seconds count from the first message of the boot; None
    where the log does not begin with the boot.
    """
    pending: list[str] = []
    when: float | None = None
    origin: float | None = None
    for raw in log.split("\n"):
        line = raw.rstrip("\r")
        if not line or KMSG_FIELD.match(line) or JOURNAL_NOTE.match(line):
            continue
        stamped = _stamped(line)
        if stamped is None and pending and line[0] in " \t":
            pending.append(line.strip())
            continue
        if pending:
            yield " ".join(pending), when
        text, when, wall_clock = stamped or (line, None, False)
        if wall_clock:
            if text.startswith(BOOT):
                origin = when
            when = None if when is None or origin is None else max(when - origin, 0.0)
        pending = [text]
    if pending:
        yield " ".join(pending), when


def _stamped(line: str) -> tuple[str, float | None, bool] | None:
    """(text, seconds, whether they are wall-clock time); None for a line without a stamp."""
    kmsg = KMSG.match(line)
    if kmsg:
        return KMSG_ESCAPE.sub(_unescaped, line[kmsg.end() :]), int(kmsg.group(2)) / 1e6, False
    level = LEVEL.match(line)
    if level:
        line = line[level.end() :]
    for read in (_uptime, _dated):
        found = read(line)
        if found is not None:
            return found
    return (line, None, False) if level else None


def _unescaped(match: re.Match[str]) -> str:
    """The character of an escape; a blank for one that moves a terminal's cursor."""
    char = chr(int(match.group(1), 16))
    return char if char.isprintable() else " "


def _uptime(line: str) -> tuple[str, float | None, bool] | None:
    match = UPTIME.match(line)
    return (_without_caller(line[match.end() :]), float(match.group(1)), False) if match else None


def _dated(line: str) -> tuple[str, float | None, bool] | None:
    bracket = BRACKET_DATE.match(line)
    if bracket:
        return _without_caller(line[bracket.end() :]), None, True
    iso, short = ISO.match(line), SHORT.match(line)
    match = iso or short
    if match is None:
        return None
    rest = line[match.end() :]
    prefix = HOST_KERNEL.match(rest)
    rest = rest[prefix.end() :] if prefix else rest
    inner = _uptime(rest) if prefix else None
    if inner is not None:
        return inner
    return _without_caller(rest), _iso_seconds(iso) if iso else _short_seconds(match), True


def _without_caller(text: str) -> str:
    caller = CALLER.match(text)
    return text[caller.end() :] if caller else text


def _iso_seconds(match: re.Match[str]) -> float | None:
    zone = match.group(4) or "+00:00"
    zone = "+00:00" if zone == "Z" else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    fraction = (match.group(3) or "0")[:6].ljust(6, "0")
    try:
        return datetime.fromisoformat(f"{match.group(1)}T{match.group(2)}.{fraction}{zone}").timestamp()
    except (ValueError, OverflowError):
        return None


def _short_seconds(match: re.Match[str]) -> float | None:
    """Seconds of a stamp without a year, in a leap year so that every day exists."""
    month, day, hour, minute, second = match.groups()
    try:
        number = MONTHS.index(month) + 1
        at = datetime(2024, number, int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    except ValueError:
        return None
    return at.timestamp()
