"""What an incident amounts to: the causes with the lines that prove them, and where each rank was at the end.

`fsdp_doctor.diagnosis.culprit` draws it; checks turn it into findings, and the command prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

FAILED = "failed"
WAITING = "waiting"
SILENT = "silent"
KILLED = "killed"
STOPPED = "stopped"
FINISHED = "finished"
RUNNING = "running"
STATES = (FAILED, WAITING, SILENT, KILLED, STOPPED, FINISHED, RUNNING)
"""Of a rank: own error; waited for others; said nothing while others waited; killed by a signal from
outside; stopped by the launcher; ended well; running when its log ends."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A line that proves or supports a conclusion."""

    file: str
    line: int
    rank: int | None
    time: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do: words, and a command that a user can paste."""

    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One cause, with the ranks at fault and those that only suffered."""

    code: str
    title: str
    row: str | None
    """A row of the failure table by its name, None outside it."""
    confidence: str
    """high, medium or low. Low with a title that begins "cannot tell" names no culprit."""
    why: str = ""
    """How this is known and what it does to the job, in one or two sentences."""
    culprits: tuple[int, ...] = ()
    host: str | None = None
    device: str | None = None
    victims: tuple[int, ...] = ()
    evidence: tuple[Proof, ...] = ()
    fixes: tuple[Remedy, ...] = ()
    alternatives: tuple[str, ...] = ()
    """What else could be so, or what was ruled out."""
    record_next: tuple[str, ...] = ()
    """What would decide it next time."""
    explained: tuple[str, ...] = ()
    """Codes of signatures whose hits this conclusion explains."""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RankState:
    """Where one rank was at the end."""

    rank: int
    state: str
    """One of `STATES`."""
    last_seen: float | None = None
    last_line: str = ""
    step: int | None = None
    collective: str = ""
    """The last one that is known of it, such as "_ALLGATHER_BASE #20911"."""
    first_error: str = ""
    exit: int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The conclusions, the likeliest first; none for a healthy log."""

    conclusions: tuple[Conclusion, ...] = ()
    ranks: tuple[RankState, ...] = ()
    summary: str = ""
    """One paragraph to paste into an issue."""
    timeline: tuple[str, ...] = ()
    """One line per event, in order."""
    notes: tuple[str, ...] = ()
    """What was inferred, what could not be read."""

    @property
    def cause(self) -> Conclusion | None:
        """The likeliest conclusion."""
        return self.conclusions[0] if self.conclusions else None
