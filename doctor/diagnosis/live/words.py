"""Places and ranks in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import CODE, COLLECTIVE, COMPILE, DATA, GPU, LOCK, SAVE, UNSEEN, Place

DOES = {
    COLLECTIVE: ("waits in", "wait in"),
    GPU: ("waits for its GPU in", "wait for their GPUs in"),
    DATA: ("loads data in", "load data in"),
    SAVE: ("saves in", "save in"),
    LOCK: ("waits for another thread or process in", "wait for another thread or process in"),
    COMPILE: ("compiles in", "compile in"),
    CODE: ("is in", "are in"),
}
"""What one process does at a place, and several."""


def where(place: Place) -> str:
    """Such as `all_reduce, called at step (train.py:31)`."""
    user = frame(place.user)
    text = f": {place.text}" if place.text else ""
    if place.library is not None and place.user is not None and place.library != place.user:
        return f"{place.library.function}, called at {user}{text}"
    if place.user is not None:
        return f"{user}{text}"
    return frame(place.library) if place.library is not None else "no Python code"


def frame(found: Frame | None) -> str:
    """A function with the file's own name and the line."""
    if found is None:
        return "?"
    line = f":{found.line}" if found.line is not None else ""
    return f"{found.function} ({PurePath(found.file).name}{line})"


def does(place: Place, count: int = 1) -> str:
    """What so many processes at a place do, with where."""
    if place.kind == UNSEEN:
        return "cannot be seen"
    return f"{DOES[place.kind][count > 1]} {where(place)}"


def ranks(numbers: Sequence[int]) -> str:
    """Such as `rank 3` or `ranks 0-2, 5`."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            first, last = ordered[start], ordered[i - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = i
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def they(numbers: Sequence[int], one: str, many: str) -> str:
    """The verb's form for one rank or several."""
    return one if len(set(numbers)) == 1 else many
