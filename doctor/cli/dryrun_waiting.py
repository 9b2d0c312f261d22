"""What further replays will be made and how long that takes: one line, and for a person how far they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

from fsdp_doctor.cli.output import is_terminal
from fsdp_doctor.memory.many import workers

Shown = Callable[[int, int], None]
"""Is told how many replays are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Work:
    """The replays of one flag."""

    flag: str
    what: str
    count: int
    children: int = 1
    """Times that torch is imported for them."""


@contextmanager
def waiting(works: Sequence[Work], seconds: float, start: float) -> Iterator[Callable[[str], Shown | None]]:
    """Say on standard error what will be done; yields what makes the listener of a flag's replays.

    `seconds` is what one replay takes and `start` what the import of torch does.
    """
    if not works:
        yield lambda flag: None
        return
    side_by_side = workers()
    expected = sum(w.count * seconds / side_by_side + w.children * start for w in works)
    said = ", ".join(f"{w.flag} {w.what}" for w in works)
    beside = f", {side_by_side} at a time" if side_by_side > 1 else ""
    click.echo(f"dryrun: replays {said}{beside}; takes {_about(expected)}", err=True)
    if not is_terminal(sys.stderr):
        yield lambda flag: None
        return
    from rich.console import Console

    with Console(stderr=True).status("replaying") as status:
        yield lambda flag: lambda done, of: status.update(f"{flag}: {done} of {of} replayed")


def _about(seconds: float) -> str:
    """A length of time as exactly as it is known."""
    if seconds >= 90:
        return f"about {seconds / 60:.0f} min"
    return f"about {max(5, 5 * round(seconds / 5))} s"
