"""What the user said about the run that is judged; passed to every check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Profile(str, Enum):
    """How much time a check command may take."""

    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class Options:
    """None is "not said"."""

    profile: Profile = Profile.STANDARD
    nproc: int | None = None
    """Ranks per node that the job will start."""
    nodes: int | None = None
    checkpoint: str | None = None
    model_bytes: int | None = None
    """Bytes of the parameters in the precision that is saved, where a model was given."""
    allow_mixed_gpus: bool = False
