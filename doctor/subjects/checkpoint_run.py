"""The checkpoints of one run, the newest first."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.subjects.checkpoint import Format


@dataclass(frozen=True, slots=True)
class Candidate:
    """One folder or file of the run that may be a checkpoint."""

    path: str
    """As it can be given to a command."""
    step: int | None = None
    """From its name, else from its content where it was read."""
    modified: float | None = None
    read: bool = False
    """Candidates older than the newest whole one are not read."""
    complete: bool = False
    format: Format = Format.UNKNOWN
    why: str = ""
    """Why it is not whole: the first problem that breaks it, with how many more there are."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder in which a run saves."""

    path: str
    candidates: tuple[Candidate, ...] = ()
    tracker: str | None = None
    """A file such as DeepSpeed's `latest` that names a checkpoint."""
    tracked: str | None = None
    """What it names."""

    @property
    def latest(self) -> Candidate | None:
        """The newest whole one."""
        return next((c for c in self.candidates if c.complete), None)

    @property
    def newer(self) -> tuple[Candidate, ...]:
        """Those that are newer than it and not whole."""
        found = []
        for candidate in self.candidates:
            if candidate.complete:
                break
            if candidate.read:
                found.append(candidate)
        return tuple(found)
