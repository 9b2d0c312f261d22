"""A training script that was run as rank 0 of N: what it allocated, and on what the figures rest."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.subjects.memory import Assumption, MemoryForecast, ReplayProblem
from fsdp_doctor.subjects.memory_measured import MeasuredOom


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A path that the script would have changed, and was kept from changing."""

    path: str
    how: str
    """file, folder, removed, torch.save, dcp.save, …"""
    bytes: int | None
    """Of the tensors that were to be saved, on this rank; None for other files."""
    place: str
    times: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What came of one rehearsal: a forecast, or a problem, or both where it ended before its last step."""

    mode: str
    """gpu: real tensors, measured; fake: fake tensors, followed. Empty where it did not come so far."""
    script: str
    world_size: int
    steps_wanted: int
    steps_done: int = 0
    ended: str = ""
    """steps: after enough of them; end, exit, raised, refused: before."""
    forecast: MemoryForecast | None = None
    init_peak: int = 0
    """Highest allocated bytes before the first forward."""
    step_seconds: tuple[float, ...] = ()
    """Seconds of each whole step, without communication; measured on a GPU only."""
    measured_on: str = ""
    """The GPU of a rehearsal on one."""
    torch: str = ""
    workspaces: int = 0
    """Bytes of cuBLAS within the allocated ones, which fake tensors have not; measured on a GPU only."""
    oom: MeasuredOom | None = None
    """Where memory ran out, on a GPU; the forecast is of what came before it."""
    optimizers: tuple[str, ...] = ()
    communicators: int = 0
    assumed: tuple[Assumption, ...] = ()
    handled: tuple[Assumption, ...] = ()
    """Calls that did something else than they would in the job."""
    elsewhere: tuple[Assumption, ...] = ()
    """Lines that name another GPU than the rank's own, which stood for it: cuda:1, …"""
    unwritten: tuple[Unwritten, ...] = ()
    problem: ReplayProblem | None = None
    said: str = ""
    """What it said when it exited by itself."""
    ended_at: str = ""
    """The line of the script that exited."""
