"""The ranks of a job that runs on this host now: their processes, where they stand, what their GPUs do."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.subjects.incident import Frame

COLLECTIVE = "collective"
GPU = "gpu"
DATA = "data"
SAVE = "save"
LOCK = "lock"
COMPILE = "compile"
CODE = "code"
UNSEEN = "unseen"
KINDS = (COLLECTIVE, GPU, DATA, SAVE, LOCK, COMPILE, CODE, UNSEEN)
"""Where a process stands: in a collective; waiting for its GPU; loading data; writing a checkpoint; waiting
for another thread or process; compiling; in the program's own code; not known."""

PY_SPY = "py-spy"
FAULTHANDLER = "faulthandler"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread; the innermost frame is last."""

    frames: tuple[Frame, ...]
    name: str = ""
    main: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands, in the words of its own program."""

    kind: str
    """One of `KINDS`."""
    user: Frame | None = None
    """The innermost frame that is neither torch nor another library."""
    library: Frame | None = None
    """The frame that tells the kind: the collective, the loader's wait."""
    text: str = ""
    """The user frame's source line, where it can be read here."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank's process on this host."""

    pid: int
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    state: str | None = None
    """The kernel's letter: R S D T t Z."""
    wait_channel: str | None = None
    command: tuple[str, ...] = ()
    python: str | None = None
    threads: tuple[Thread, ...] = ()
    method: str | None = None
    """How the stack was taken."""
    problem: str | None = None
    """Why there is no stack."""
    remedy: str | None = None
    """The command that would allow it."""
    moving: bool = False
    """Its stack differed between two samples."""
    cpu_seconds: float | None = None
    """Processor time between the samples."""
    place: Place | None = None
    helpers: tuple[tuple[int, Place], ...] = ()
    """Its loader workers, looked at where it waits for one: process id and place."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What NVML says of one GPU that a rank holds. Percent and watts."""

    index: int
    ranks: tuple[int, ...] = ()
    name: str | None = None
    utilisation: int | None = None
    """Share of time with a kernel running; a collective that waits counts as one."""
    power: float | None = None
    limit: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks that stand at the same place."""

    place: Place
    members: tuple[int, ...]
    """Ranks; process ids where ranks are not known."""


STOPPED = "stopped"
GONE = "gone"
ELSEWHERE = "elsewhere"
LOADING = "loading"
ALL_WAIT = "all wait"
WORKING = "working"
NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class LiveConclusion:
    """One thing that the stacks say. `kind` is one of those above."""

    kind: str
    words: str
    ranks: tuple[int, ...] = ()
    """At fault."""
    waiting: tuple[int, ...] = ()
    confidence: str = "high"
    file: str | None = None
    line: int | None = None
    fix: str = ""
    command: str | None = None


@dataclass(frozen=True, slots=True)
class LiveJob:
    """What was found of one job on this host."""

    host: str
    job: str
    """What its ranks have in common: the launcher's id, or the address they meet at."""
    processes: tuple[RankProcess, ...] = ()
    groups: tuple[StackGroup, ...] = ()
    """The largest first."""
    gpus: tuple[GpuLoad, ...] = ()
    seconds: float = 0.0
    """Between the samples."""
    other_jobs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    local_world_size: int | None = None
    """Ranks that the launcher started on this host."""
    conclusions: tuple[LiveConclusion, ...] = ()
    """The likeliest cause first."""

    @property
    def world_size(self) -> int | None:
        """As the ranks' environment says it."""
        return next((p.world_size for p in self.processes if p.world_size is not None), None)
