"""SLURM's short forms of lists: "node[01-03,7],login" and "8(x2),4"."""

from __future__ import annotations

import re
from itertools import product

from fsdp_doctor.facts.parse import integer

NODE_LIMIT = 65536
LENGTH_LIMIT = 1 << 20
NAME_LIMIT = 255
DIGITS = 12
BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def node_names(text: str) -> tuple[str, ...] | None:
    """Host names in order; None if the list does not parse or names more than any cluster has."""
    names: list[str] = []
    for item in _split(text[:LENGTH_LIMIT]):
        expanded = _expand(item)
        if expanded is None or len(names) + len(expanded) > NODE_LIMIT:
            return None
        names += expanded
    return tuple(names) if names else None


def task_counts(text: str) -> tuple[int, ...] | None:
    """Tasks of each node in order; None if the list does not parse."""
    counts: list[int] = []
    for item in text[:LENGTH_LIMIT].split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\(x(\d{1,6})\))?\s*", item)
        times = int(match.group(2) or 1) if match else 0
        if match is None or len(counts) + times > NODE_LIMIT:
            return None
        counts += [int(match.group(1))] * times
    return tuple(counts)


def _split(text: str) -> list[str]:
    """Items between commas that are not inside brackets."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    return [i for item in [*items, text[start:]] if (i := item.strip())]


def _expand(item: str) -> list[str] | None:
    parts = BRACKETS.split(item)
    fixed = "".join(parts[::2])
    if "[" in fixed or "]" in fixed or len(fixed) > NAME_LIMIT:
        return None
    choices: list[list[str]] = []
    total = 1
    for position, part in enumerate(parts):
        values = [part] if position % 2 == 0 else _ranges(part)
        if values is None:
            return None
        choices.append(values)
        total *= len(values)
        if total > NODE_LIMIT:
            return None
    return ["".join(chosen) for chosen in product(*choices)]


def _ranges(text: str) -> list[str] | None:
    """Numbers of "01-03,7" with their leading zeros."""
    values: list[str] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        high = high if dash else low
        first, last = integer(low), integer(high)
        if not (low.isdigit() and high.isdigit()) or first is None or last is None or len(low) > DIGITS:
            return None
        if not 0 <= last - first < NODE_LIMIT - len(values):
            return None
        values += [str(n).rjust(len(low), "0") for n in range(first, last + 1)]
    return values
