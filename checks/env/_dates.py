"""The day on which facts were collected, read from their own record."""

from __future__ import annotations

import re
from datetime import date

_DAY = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")


def seen_on(created: str | None) -> date | None:
    """The date of an ISO time; None where it is none."""
    found = _DAY.match(created.strip()) if created else None
    try:
        return date(*(int(n) for n in found.groups())) if found else None
    except ValueError:
        return None
