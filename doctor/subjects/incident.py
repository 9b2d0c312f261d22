"""What a failed job left behind: lines that a signature knows, exits, stacks, steps and who should be there.

The conclusions that are drawn from it are a `Diagnosis` (`fsdp_doctor.subjects.diagnosis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_doctor.subjects.accounting import Account
from fsdp_doctor.subjects.diagnosis import Conclusion
from fsdp_doctor.subjects.memory_snapshot import MemorySnapshot
from fsdp_doctor.subjects.ras import RasReport

ROOT = "root"
LIKELY = "likely"
CONFIRMS = "confirms"
VICTIM = "victim"
CONTEXT = "context"
KINDS = (ROOT, LIKELY, CONFIRMS, VICTIM, CONTEXT)
"""What a line is to the cause: the cause itself, likely it, a pointer to it, a consequence, or neither."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a line stood and who wrote it, as far as its prefix, its file or its text tell."""

    file: str
    line: int = 0
    """Counted from 1; 0 where lines have no numbers (a dump, an answer of a live process)."""
    rank: int | None = None
    """Global rank."""
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    time: float | None = None
    """Seconds since the epoch, in UTC where the log tells its zone, else as if it were UTC."""
    stream: str | None = None
    """stdout, stderr, kernel, or None."""
    attempt: int = 0
    """Restarts of the launcher before this line."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack: the innermost is last."""

    function: str
    file: str
    line: int | None = None
    code: str = ""
    """The source line, where the log shows it."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One line that a signature knows. `text` is one line, cut to a bounded length and without its prefix."""

    code: str
    kind: str
    """One of `KINDS`."""
    origin: Origin
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """What the signature's named groups caught."""
    frames: tuple[Frame, ...] = ()
    """The traceback that ends in this line, or the call site that torch printed for a collective."""
    count: int = 1
    """How often the same signature met the same rank; `origin` is the first."""
    order: int = 0
    """Position in the incident: a later number stood later in its file; files are in the order given."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, by its launcher, scheduler or kernel."""

    origin: Origin
    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    code: int | None = None
    """Exit status; negative is minus the signal's number."""
    reporter: str = ""
    """torchrun, srun, mpirun, slurm, kubernetes."""
    first: bool = False
    """Named by torchrun as "Root Cause (first observed failure)"."""
    told: str = ""
    """Its own words: a signal's name, OUT_OF_MEMORY, a traceback's last line."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """Progress that a rank reported: a step, and the seconds it says one took (None where it does not)."""

    rank: int | None
    step: int
    seconds: float | None
    origin: Origin
    data: float | None = None
    """Of the step's time, the share that it waited for data, where the line tells."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Parts of the step that the line names (forward, backward, waiting, …) -> seconds."""


@dataclass(frozen=True, slots=True)
class LastLine:
    """The last line seen of a rank and how many of its lines were looked at."""

    rank: int
    text: str
    origin: Origin
    seen: int = 1
    own: str = ""
    """The last line of the program itself, before what torch and NCCL print of a failure."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread of one process (py-spy, faulthandler, a debugger); innermost frame last."""

    frames: tuple[Frame, ...]
    origin: Origin
    rank: int | None = None
    pid: int | None = None
    thread: str = ""
    main: bool = True
    command: str = ""


@dataclass(frozen=True, slots=True)
class RecorderConclusion:
    """What the Flight Recorder dumps of one process group say (`fsdp_doctor.diagnosis.flight` draws it)."""

    group: str
    kind: str
    """missing, mismatch, unfinished, stalled, healthy, or unknown."""
    ranks: tuple[int, ...] = ()
    """The ranks at fault; empty where all did the same."""
    members: tuple[int, ...] = ()
    sequence: int | None = None
    operation: str = ""
    words: str = ""
    """One sentence: what was found, with the figures."""
    expected: str = ""
    confidence: str = "high"
    evidence: tuple[Origin, ...] = ()
    frames: tuple[Frame, ...] = ()
    """Where in the program the ranks at fault, else the others, stood."""
    silent: tuple[int, ...] = ()
    """Members without a dump."""
    conclusion: Conclusion | None = None
    """The same as a conclusion, with its code, proofs and fix; None where nothing is wrong."""


@dataclass(frozen=True, slots=True)
class OomReport:
    """The figures of one out-of-memory message in bytes, None where it does not give them."""

    origin: Origin
    text: str
    requested: int | None = None
    gpu: int | None = None
    total: int | None = None
    free: int | None = None
    in_use: int | None = None
    """By this process, with what is not PyTorch's."""
    allocated: int | None = None
    unallocated: int | None = None
    """Reserved by PyTorch and not allocated."""
    private_pools: int | None = None
    allowed: int | None = None
    """By set_per_process_memory_fraction."""
    others: Mapping[int, int] = field(default_factory=dict)
    """Other processes on the same GPU: pid -> bytes."""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class JobShape:
    """Who should be there."""

    world_size: int | None = None
    stated: bool = False
    """The logs say so; else it is inferred (the highest rank, the group size that sizes imply)."""
    basis: str = ""
    ranks_seen: tuple[int, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Rank -> host."""
    pids: Mapping[int, int] = field(default_factory=dict)
    """Rank -> process id."""
    processes: frozenset[int] = frozenset()
    """Ids of the job's own processes, those included whose rank is not known."""
    buses: Mapping[int, int] = field(default_factory=dict)
    """PCI bus id of a GPU, as NCCL prints it in hexadecimal -> rank, where it is one rank's only."""
    nodes: int | None = None
    restarts: int = 0
    torch: str | None = None
    nccl: str | None = None
    launcher: str | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """One thing that was read, or could not be: `problem` says why, "" where it was read to its end."""

    name: str
    kind: str
    """log, error file, kernel log, stacks, accounting, flight recorder, memory snapshot, archive, unread."""
    bytes: int = 0
    lines: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """All evidence."""

    inputs: tuple[Input, ...] = ()
    hits: tuple[Hit, ...] = ()
    exits: tuple[Exit, ...] = ()
    accounts: tuple[Account, ...] = ()
    ras: tuple[RasReport, ...] = ()
    """In the order of the questions."""
    job: JobShape = field(default_factory=JobShape)
    steps: tuple[StepPoint, ...] = ()
    nccl_seconds: Mapping[int, float] = field(default_factory=dict)
    """Rank -> how long its NCCL kernels ran, by torch's profiler."""
    last_lines: tuple[LastLine, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    recorder: tuple[RecorderConclusion, ...] = ()
    ooms: tuple[OomReport, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
    """Of CUDA memory."""
    done: tuple[int, ...] = ()
    """Ranks that said they had finished."""
    clock_offsets: Mapping[str, float] = field(default_factory=dict)
    """File -> seconds that were added to its clock to agree with the others."""
    truncated: bool = False
    """The deadline came, or a limit was met, before all was read."""
