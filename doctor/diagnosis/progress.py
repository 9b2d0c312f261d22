"""Progress that ranks report in their own lines: which step, and how long it took."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.subjects.incident import StepPoint

_STEP = re.compile(
    r"\b(?:(?:global[_ ]?)?step|iter(?:ation)?|batch)[\"']?\s?[:=#]?\s{0,4}\[?(?P<n>\d{1,9})\b(?![.:]\d)",
    re.I,
)
_SECONDS = re.compile(
    r"(?:(?:time|sec(?:ond)?s?|ms)[ _]?(?:/|per)[ _]?(?:step|iter(?:ation)?|batch)|(?:step|iter(?:ation)?|batch)[ _-]?time|"
    r"elapsed time per iteration|train_step_timing(?: in s)?|step took|time_per_step|dt)"
    r"(?P<unit0> \(ms\))?[\"']?\s?[:=]?\s{0,4}(?P<v>\d+(?:\.\d+)?)\s?(?P<unit>ms|s|sec)?\b"
    r"|(?P<per>\d+(?:\.\d+)?)\s?s/(?:it|step)\b|(?P<rate>\d+(?:\.\d+)?)\s?(?:it|steps?)/s\b"
    r"|\btps[:=]\s{0,3}(?P<tps>[\d,]+(?:\.\d+)?)|tok(?:en)?s?/s(?:ec)?[:=]?\s{0,3}(?P<tok>[\d,]+(?:\.\d+)?)",
    re.I,
)
_BAR = re.compile(
    r"\b(?P<n>\d{1,9})/\d{1,9} \[\d+(?::\d\d)+<[^,\]]{0,20}, {0,3}(?:(?P<rate>\d+\.\d+)\s?(?:it|batch|step)e?s?/s|(?P<per>\d+\.\d+)\s?s/(?:it|batch|step))"
)
"""What tqdm prints: the count, the time that passed and is left, and the pace."""
_COUNTED = re.compile(r"\[\s{0,6}(?P<n>\d{1,9})/\d{1,9}(?=[\] ])")
KEEP = 160
"""Points per rank; older ones are thinned."""


def progress(text: str) -> tuple[int, float | None] | None:
    """Step and seconds of one line. A rate of tokens comes as its inverse, comparable within a job only."""
    if (bar := _BAR.search(text)) is not None:
        rate = float(bar["rate"] or 0)
        return int(bar["n"]), float(bar["per"]) if bar["per"] else 1 / rate if rate > 0 else None
    step = _STEP.search(text)
    if step is None:
        return None
    found = _SECONDS.search(text)
    return int(step["n"]), _seconds(found) if found else None


def counted(text: str) -> int | None:
    """The number of a batch where a line gives it as a part of the epoch's: `[ 10/5005]`."""
    found = _COUNTED.search(text)
    return int(found["n"]) if found else None


def _seconds(found: re.Match[str]) -> float | None:
    try:
        if found["v"]:
            value = float(found["v"])
            return value / 1000 if found["unit"] == "ms" or found["unit0"] else value
        if found["per"]:
            return float(found["per"])
        rate = float((found["rate"] or found["tps"] or found["tok"] or "0").replace(",", ""))
        return 1 / rate if rate > 0 else None
    except ValueError:
        return None


def thin(points: list[StepPoint]) -> None:
    """Keep the first and the last points, and every other of those between."""
    if len(points) > KEEP:
        points[8:-64] = points[8:-64:2]


def by_rank(points: Iterable[StepPoint]) -> dict[int, list[StepPoint]]:
    """Points of each known rank, in order of their steps' appearance."""
    found: dict[int, list[StepPoint]] = {}
    for point in points:
        if point.rank is not None:
            found.setdefault(point.rank, []).append(point)
    return found
