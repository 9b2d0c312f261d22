"""What a child says, field by field: values of another type than expected are as if they were not there."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.subjects.memory import Assumption
from fsdp_doctor.subjects.rehearsal import Unwritten


def notes(result: Mapping[str, object], key: str) -> tuple[Assumption, ...]:
    """Notes of one kind."""
    return tuple(
        Assumption(text(n, "place"), text(n, "what"), integer(n, "times") or 1)
        for n in items(result, key)
        if isinstance(n, Mapping)
    )


def unwritten(result: Mapping[str, object]) -> tuple[Unwritten, ...]:
    """Paths that were kept from changing."""
    found: list[Unwritten] = []
    for n in items(result, "unwritten"):
        if isinstance(n, Mapping):
            size = n.get("bytes")
            found.append(
                Unwritten(
                    text(n, "path"),
                    text(n, "how"),
                    size if isinstance(size, int) else None,
                    text(n, "place"),
                    integer(n, "times") or 1,
                )
            )
    return tuple(found)


def text(of: Mapping[str, object], key: str) -> str:
    """A string, or ""."""
    value = of.get(key, "")
    return value if isinstance(value, str) else ""


def integer(of: Mapping[str, object], key: str) -> int:
    """A number without its fraction, or 0."""
    value = of.get(key)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def items(of: Mapping[str, object], key: str) -> list[object]:
    """A list, or an empty one."""
    value = of.get(key)
    return value if isinstance(value, list) else []
