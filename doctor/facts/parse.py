"""Small parsers of kernel text formats; none raises, whatever it is given."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_doctor.facts.source import Source, text

BDF = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
"""A PCI address as sysfs writes it."""
RANGE_LIMIT = 1 << 16
"""More processors or nodes than any kernel is built for: a longer list is not a list."""


def integer(value: str | None, base: int = 10) -> int | None:
    """A whole number in the kernel's notation; None for anything else."""
    try:
        return None if value is None else int(value.strip(), base)
    except ValueError:
        return None


def real(value: str | None) -> float | None:
    """A finite decimal number; None for anything else."""
    try:
        found = None if value is None else float(value.strip())
    except ValueError:
        return None
    return found if found is not None and abs(found) < 1e300 else None


def number_list(value: str | None) -> tuple[int, ...] | None:
    """Members of "0-3,8,10-11"; empty for an empty list, None if it is something else."""
    if value is None:
        return None
    members: list[int] = []
    for part in value.split(","):
        low, dash, high = part.strip().partition("-")
        if not low and not dash:
            continue
        first, last = integer(low), integer(high if dash else low)
        if first is None or last is None or first < 0 or last - first + len(members) > RANGE_LIMIT:
            return None
        members.extend(range(first, last + 1))
    return tuple(members)


def fields(value: str | None, separator: str = ":") -> dict[str, str]:
    """Lines "key: value" as a mapping; of a repeated key the first."""
    found: dict[str, str] = {}
    for line in (value or "").splitlines():
        key, mark, rest = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), rest.strip())
    return found


def chosen(value: str | None) -> str | None:
    """The word in brackets of "always [madvise] never"."""
    match = re.search(r"\[([^\[\]\s]+)\]", value or "")
    return match.group(1) if match else None


def counters(source: Source, folder: str, names: Iterable[str] | None = None) -> dict[str, int]:
    """Files of a folder that hold one whole number each; all files unless `names` says which."""
    found: dict[str, int] = {}
    for name in source.listdir(folder) if names is None else names:
        value = integer(text(source, f"{folder}/{name}", 64))
        if value is not None:
            found[name] = value
    return found


def pci_parts(real_path: str) -> tuple[str, ...]:
    """PCI addresses in the real path of a device of sysfs, from the root port down to the device."""
    return tuple(part for part in real_path.split("/") if BDF.match(part))
