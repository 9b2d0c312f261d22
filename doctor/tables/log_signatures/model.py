"""What an entry of the table of log signatures says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from fsdp_doctor.findings import Row


class Kind(str, Enum):
    """What a line is to the cause."""

    ROOT = "root"
    LIKELY = "likely"
    CONFIRMS = "confirms"
    VICTIM = "victim"
    CONTEXT = "context"


class Scope(str, Enum):
    """Whose fault a root is."""

    RANK = "rank"
    """The rank that prints it: its data, its memory, its process."""
    JOB = "job"
    """The program or its configuration: every rank would print it, and none is to blame alone."""
    HOST = "host"
    """The machine: its memory, its disk, its shared memory."""
    DEVICE = "device"
    """A GPU or a link."""
    NAMED = "named"
    """The rank that the line names in its group `bad`, not the one that prints it."""


@dataclass(frozen=True)
class Signature:
    """One kind of line.

    A line matches where `pattern` does; one of `literals` occurs in every match, so that a long log is
    searched for those first and nothing is lost. Where a literal is common in healthy logs, `gate` is a
    cheaper and still lossless expression for the multi-pattern engine. `weight` (0 to 100) ranks roots of
    one incident against each other.
    """

    code: str
    kind: Kind
    weight: int
    row: Row | None
    title: str
    literals: tuple[str, ...]
    pattern: str
    why: str
    fix: str
    sources: str
    sample: str
    scope: Scope = Scope.RANK
    command: str | None = None
    gate: str | None = None
    says: str | None = None
    """A sentence with the groups' names in braces; the title where it is None."""
    generic: bool = False
    """Counts only where no other signature knows the line."""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of what is caught."""
        return tuple(self.regex.groupindex)


Row_ = Row | None
Declare = Callable[..., Signature]


def family(kind_of_row: Row_) -> Declare:
    """A constructor of entries of one row; the row can be overridden."""

    def declare(
        code: str,
        kind: Kind,
        weight: int,
        title: str,
        literals: str | tuple[str, ...],
        pattern: str,
        *,
        why: str,
        fix: str,
        sources: str,
        sample: str,
        row: Row_ | str = "",
        scope: Scope = Scope.RANK,
        command: str | None = None,
        gate: str | None = None,
        says: str | None = None,
        generic: bool = False,
    ) -> Signature:
        return Signature(
            code,
            kind,
            weight,
            kind_of_row if row == "" else (Row(row) if row is not None else None),
            title,
            (literals,) if isinstance(literals, str) else literals,
            pattern,
            why,
            fix,
            sources,
            sample,
            scope,
            command,
            gate,
            says,
            generic,
        )

    return declare
