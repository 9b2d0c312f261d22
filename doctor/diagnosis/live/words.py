"""Places and ranks in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.subjects.stacks import CODE, COLLECTIVE, COMPILE, DATA, GPU, LOCK, SAVE, UNSEEN, Place

DOES = {
    COLLECTIVE: "waits in",
    GPU: "waits for its GPU in",
    DATA: "loads data in",
    SAVE: "saves in",
    LOCK: "waits for another thread or process in",
    COMPILE: "compiles in",
    CODE: "is in",
    UNSEEN: "cannot be seen",
}


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


def does(place: Place) -> str:
    """What a process at a place does, with where."""
    return f"{DOES[place.kind]} {where(place)}" if place.kind != UNSEEN else DOES[UNSEEN]


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
