"""Version numbers as tuples: drivers, CUDA, NCCL, glibc and Python are compared by their leading numbers."""

from __future__ import annotations

import re

Version = tuple[int, ...]

_LEADING = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}")


def parse(text: str | None) -> Version | None:
    """The leading numbers of a version: `2.13.0+cu130` is (2, 13, 0); None where there are none."""
    found = _LEADING.match(text.strip().removeprefix("v")) if text else None
    return tuple(int(n) for n in found.group().split(".")) if found else None


def at_least(version: Version, floor: Version) -> bool:
    """Whether `version` is not below `floor`; missing numbers count as zero."""
    length = max(len(version), len(floor))
    return _padded(version, length) >= _padded(floor, length)


def same(one: Version, other: Version) -> bool:
    """Equality with missing numbers as zero."""
    return at_least(one, other) and at_least(other, one)


def show(version: Version) -> str:
    """Dotted form without a driver's leading zeros; for messages where no original text exists."""
    return ".".join(str(n) for n in version)


def local_tag(text: str | None) -> str | None:
    """What follows the plus sign: `cu130` of `2.13.0+cu130`."""
    if not text or "+" not in text:
        return None
    return text.split("+", 1)[1].strip() or None


def is_prerelease(text: str) -> bool:
    """A nightly, alpha, release candidate or source build, such as 2.9.0a0+145a3a7 or 2.15.0.dev20260801."""
    public = text.split("+", 1)[0]
    return re.search(r"(?:a|b|rc|dev)[0-9]", public) is not None or "+git" in text


def _padded(version: Version, length: int) -> Version:
    return version + (0,) * (length - len(version))
