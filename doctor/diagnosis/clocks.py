"""Times of logs: many notations, some without year or zone, and clocks that differ between nodes."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Mapping
from statistics import median

MONTHS = {
    m: i + 1
    for i, m in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    )
}
DATE_TIME = (
    r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T _](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
    r"(?P<z>Z|[+-]\d\d:?\d\d)?"
)
"""ISO 8601 and its relatives, as a pattern with the groups that `from_groups` reads."""
SECONDS_APART = 2.0
"""Clocks that agree to this are left alone."""


def from_groups(groups: Mapping[str, str | None]) -> float | None:
    """Seconds since the epoch of the groups of `DATE_TIME`; without a zone as if it were UTC."""
    try:
        parts = tuple(int(groups[k] or "") for k in ("y", "mo", "d", "h", "mi", "s"))
        fraction = float("0." + (groups.get("f") or "0"))
        seconds = timegm((*parts, 0, 0, 0)) + fraction
    except (KeyError, ValueError, OverflowError):
        return None
    zone = groups.get("z")
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        seconds -= sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return seconds


def without_year(month: int, day: int, clock: str, year: int) -> float | None:
    """Seconds since the epoch of a month, a day and HH:MM:SS[.ffffff] of `year`."""
    try:
        h, mi, s = clock.split(":")
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        return timegm((year, month, day, int(h), int(mi), 0, 0, 0, 0)) + float(s.replace(",", "."))
    except ValueError:
        return None


ISO = re.compile(DATE_TIME)


def parse(text: str) -> float | None:
    """The first full time in a text."""
    found = ISO.search(text)
    return from_groups(found.groupdict()) if found else None


def offsets(events: Iterable[tuple[str, tuple[str, int], float]]) -> dict[str, float]:
    """Seconds to add to each clock so that events that are simultaneous by construction agree.

    `events` are (clock, (group, sequence number), time at which the collective began there). The first
    clock is the reference. Clocks that share no event with it keep their own time and are left out.
    """
    by_clock: dict[str, dict[tuple[str, int], float]] = {}
    for clock, key, time in events:
        by_clock.setdefault(clock, {}).setdefault(key, time)
    clocks = list(by_clock)
    if len(clocks) < 2:
        return {}
    reference = by_clock[clocks[0]]
    found: dict[str, float] = {}
    for clock in clocks[1:]:
        shared = [reference[k] - t for k, t in by_clock[clock].items() if k in reference]
        if shared and abs(shift := median(shared)) > SECONDS_APART:
            found[clock] = shift
    return found
