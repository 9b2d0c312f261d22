"""The configuration text of torch's CUDA allocator: `key:value,key:[a:b,c:d],…`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.tables.torch_variables import ALLOCATOR, ALLOCATOR_BACKENDS, Option

NUMBER = re.compile(r"[0-9]{1,12}\Z")
FRACTION = re.compile(r"[0-9]{0,6}\.?[0-9]{0,12}\Z")


def pairs(text: str) -> Iterator[tuple[str, str | None]]:
    """Keys with their values; a value is None where the colon is missing. Blanks do not count."""
    depth, start = 0, 0
    bare = "".join(text.split())
    parts = []
    for i, c in enumerate(bare):
        depth += (c == "[") - (c == "]")
        if c == "," and depth <= 0:
            parts.append(bare[start:i])
            start = i + 1
    parts.append(bare[start:])
    for part in parts:
        if part:
            key, colon, value = part.partition(":")
            yield key, value if colon else None


def wrong(option: Option, value: str | None) -> str | None:
    """What a value should be where torch would raise at it; None where it is right."""
    if value is None or value == "":
        return "KEY:VALUE"
    if option.kind == "bool":
        return None if value in ("True", "False") else "True or False, in exactly these letters"
    if option.kind in ("size", "integer"):
        good = NUMBER.match(value) is not None and int(value) >= option.minimum
        unit = " MiB" if option.kind == "size" else ""
        return None if good else f"a whole number of at least {option.minimum}{unit}"
    if option.kind == "fraction":
        good = FRACTION.match(value) is not None and any(c.isdigit() for c in value)
        return None if good and 0 < float(value) <= 1 else "a number between 0 and 1"
    if option.kind == "backend":
        return None if value in ALLOCATOR_BACKENDS else f"one of {', '.join(ALLOCATOR_BACKENDS)}"
    return None if _divisions(value) else "a power of two, or [SIZE:POWER,…,>:POWER]"


def _divisions(value: str) -> bool:
    if not value.startswith("["):
        return _power(value)
    if not value.endswith("]"):
        return False
    items = [item.partition(":") for item in value[1:-1].split(",")]
    return all((k == ">" or NUMBER.match(k)) and _power(v) for k, _, v in items)


def _power(value: str) -> bool:
    return NUMBER.match(value) is not None and int(value) & (int(value) - 1) == 0


def known() -> frozenset[str]:
    """Every key of the tables."""
    return frozenset(ALLOCATOR)
