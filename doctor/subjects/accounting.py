"""What the accounting of a scheduler says of a job and of its steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """One record: of a whole job, or of one of its steps."""

    job: str
    state: str
    """The scheduler's own word in full: COMPLETED, FAILED, OUT_OF_MEMORY, NODE_FAIL, TIMEOUT, …"""
    step: str = ""
    """Such as "0" or "batch"; "" for the whole job."""
    code: int | None = None
    """Exit status."""
    signal: int | None = None
    """The signal that ended it."""
    nodes: tuple[str, ...] = ()
    user: int | None = None
    """The id of the user who cancelled it."""
    memory: str = ""
    """What it used of the memory it had asked for, in the scheduler's words."""
    file: str = ""
    line: int = 0
    text: str = ""
