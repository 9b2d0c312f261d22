"""Of the ranks that did not finish, who stood still and who waited for them. Pure: from what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.probe.journals import Steps
from fsdp_doctor.subjects.probe import STAGES

STOPPED = ("T", "t")
IN_KERNEL = "D"


@dataclass(frozen=True, slots=True)
class Seen:
    """One rank at the moment at which the probe gave up."""

    rank: int
    stage: str
    steps: Steps
    state: str | None
    """The kernel's letter for its process; None where there is none any more."""
    ended: bool
    """It left an error, or its process is gone."""
    silent: bool = False
    """Its process is gone and it left no error."""
    done: bool = False
    begun: bool = True
    """It wrote anything at all."""
    out_of_time: bool = False
    """Its own watchdog ended it."""


def standing_still(ranks: Iterable[Seen]) -> frozenset[int]:
    """Those of the running ranks that the others wait for; all of them where nobody can be told apart.

    A stopped process and one that the kernel holds are told by their state, others by the step that the
    rest has entered and they have not. Empty where the ranks that ended explain the wait.
    """
    seen = tuple(s for s in ranks if s.begun)
    running = [s for s in seen if not s.ended and not s.done]
    held = frozenset(s.rank for s in running if s.state in STOPPED or s.state == IN_KERNEL)
    if held:
        return held
    furthest = max(_place(s) for s in seen) if seen else (0, 0)
    behind = frozenset(s.rank for s in running if not s.steps.waiting and _place(s) < furthest)
    if behind:
        return behind
    return frozenset() if any(s.ended for s in seen) else frozenset(s.rank for s in running)


def _place(seen: Seen) -> tuple[int, int]:
    """How far a rank is: common steps first, since all ranks make the same ones."""
    return seen.steps.entered, STAGES.index(seen.stage) if seen.stage in STAGES else 0


def state_words(state: str | None, where: str | None) -> str:
    """What a state says of a rank that stands still; "" where it says nothing."""
    if state in STOPPED:
        return "its process is stopped (state T: SIGSTOP, a debugger or a frozen container)"
    if state == IN_KERNEL:
        return f"its process waits in the kernel (state D{f', {where}' if where else ''})"
    return ""
