"""Suppressions: a finding that the user has accepted, with the reason, stays visible and uncounted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from fsdp_doctor.findings import Result, Status


@dataclass(frozen=True, slots=True)
class Suppression:
    """Accept results of a code prefix, on a host if one is named, until a date if one is given."""

    code: str
    reason: str
    host: str | None = None
    until: date | None = None

    def covers(self, result: Result, today: date) -> bool:
        """Whether it applies: same prefix, same host, not expired, and a warning or failure."""
        return (
            result.status in (Status.WARN, Status.FAIL)
            and result.code.startswith(self.code)
            and (self.host is None or self.host == result.subject.host)
            and (self.until is None or today <= self.until)
        )


def suppress(
    results: Iterable[Result], suppressions: Iterable[Suppression], today: date
) -> tuple[Result, ...]:
    """Mark what is accepted. The first suppression that covers a result gives the reason."""
    rules = tuple(suppressions)
    marked = []
    for result in results:
        rule = next((s for s in rules if s.covers(result, today)), None)
        marked.append(replace(result, suppressed=rule.reason) if rule else result)
    return tuple(marked)
