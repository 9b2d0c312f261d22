"""What the ranks' Flight Recorders hold: one dump per rank, entries in columns, and what follows.

A job of 1,024 ranks has two million entries, so that a dump keeps arrays of small integers. What an entry
did (`Operation`) and where it was called (`CallSite`) are numbers into tables that all dumps share.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEDULED = 0
STARTED = 1
COMPLETED = 2
RETIRED = 4
"""States of an entry: one of the first three, and `RETIRED` beside it once the recorder's owner let go of it.

`COMPLETED` is noticed by a thread that polls; without TORCH_NCCL_ENABLE_TIMING nothing is ever `STARTED`.
gloo never sets a state: its operations end, well or badly, by being retired.
"""

NEVER_ENTERED = "never entered"
OTHER_OPERATION = "other operation"
OTHER_SIZE = "other size"
OTHER_DTYPE = "other dtype"
NOT_FINISHED = "not finished"
NOT_STARTED = "not started"
LATE = "late"
NO_DUMP = "no dump"
STALLED = "stalled"
CROSSED = "crossed"
UNMATCHED = "unmatched"
IN_FLIGHT = "in flight"
FINISHED = "finished"
UNDECIDED = "undecided"
KINDS = (
    NEVER_ENTERED,
    OTHER_OPERATION,
    OTHER_SIZE,
    OTHER_DTYPE,
    NOT_FINISHED,
    NOT_STARTED,
    LATE,
    NO_DUMP,
    STALLED,
    CROSSED,
    UNMATCHED,
    IN_FLIGHT,
    FINISHED,
    UNDECIDED,
)
"""Of a conclusion: ranks that never enqueued what the others wait in; that enqueued another operation, size
or type; whose kernel started and did not end; never started; that came long after the others; that left no
dump; all in and nobody out (network or device); groups taken in different order; a send without its receive
or the reverse; work under way in a healthy job; all done; cannot tell.
"""


@dataclass(frozen=True, slots=True)
class CallFrame:
    """One frame of the Python stack at the call."""

    function: str
    file: str
    line: int


CallSite = tuple[CallFrame, ...]
"""Innermost frame first, as torch writes it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one entry did. Sizes are shapes, one per tensor."""

    backend: str
    """nccl, gloo, xccl, …"""
    name: str
    """As in the dump without its backend: all_reduce, _all_gather_base, send, …"""
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    source: int | None = None
    """Of a send or receive: rank inside the group."""
    target: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group as one rank recorded it."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks, empty where the dump does not say (gloo)."""
    timeout_ms: int | None = None
    enqueued: int | None = None
    """Sequence number of the last collective by the recorder's own count, which outlives the ring."""
    started: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of one dump, oldest first, one array per field, all of the same length."""

    group: array[int]
    """Index into `FlightDump.groups`."""
    sequence: array[int]
    """Per group: `collective_seq_id`, or `p2p_seq_id` of a send or receive."""
    p2p: array[int]
    operation: array[int]
    """Index into `FlightDumps.operations`."""
    site: array[int]
    """Index into `FlightDumps.sites`."""
    state: array[int]
    created: array[int]
    """Nanoseconds since the epoch by the rank's own clock."""

    def __len__(self) -> int:
        """The number of entries."""
        return len(self.sequence)


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The dump of one rank."""

    rank: int
    path: str
    version: str
    """Of the dump's schema, "1.0" for the bare list that torch 2.2 wrote."""
    form: str
    """pickle or json."""
    groups: tuple[RecordedGroup, ...]
    entries: Entries
    first_record: int = 0
    """Number of the first entry that the ring still holds: more than 0 where older ones are lost."""
    library: str = ""
    """The communication library's version."""
    bytes: int = 0
    modified: float | None = None
    """When the file was written last, seconds since the epoch."""
    cut: str = ""
    """Why the end is missing; "" for a whole dump."""
    active_only: bool = False
    """Only unfinished entries were written (TORCH_INCLUDE_ONLY_ACTIVE)."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A file that is no dump, or none that can be read."""

    path: str
    problem: str
    kind: str = "unreadable"
    """unreadable, refused (a pickle that asks for code), snapshot (of CUDA memory), other, stale,
    duplicate.
    """


@dataclass(frozen=True, slots=True)
class FlightDumps:
    """The dumps of a job, one per rank, by rank."""

    dumps: tuple[FlightDump, ...] = ()
    operations: tuple[Operation, ...] = ()
    sites: tuple[CallSite, ...] = ()
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed in putting them together."""


@dataclass(frozen=True, slots=True)
class FlightConclusion:
    """One thing that went wrong, or did not."""

    kind: str
    """One of `KINDS`."""
    words: str
    """One sentence with the figures."""
    expected: str = ""
    group: str = ""
    """The process group as users know it."""
    members: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    """At fault; empty where nobody is or it cannot be told."""
    waiting: tuple[int, ...] = ()
    """Those that only waited."""
    silent: tuple[int, ...] = ()
    """Members without a dump."""
    sequence: int | None = None
    operation: str = ""
    confidence: str = "high"
    site: CallSite = ()
    """Where the ranks at fault stood last or called the odd operation; else where the others wait."""
    site_rank: int | None = None
    waiting_site: CallSite = ()
    evidence: tuple[tuple[str, int | None, str], ...] = ()
    """(file, rank, what it shows)."""
    consequences: tuple[str, ...] = ()
    """Other groups that wait because of this."""
    advice: str = ""
    """What follows for this very case, beyond the general fix."""


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """Where one rank's recorder stood."""

    rank: int
    group: str
    sequence: int
    operation: str
    state: str
    """scheduled, started, completed or ended."""
    created: float
    """Seconds since the epoch."""
    site: CallSite = ()


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A dump that was read."""

    path: str
    rank: int
    bytes: int
    entries: int
    cut: str = ""


@dataclass(frozen=True, slots=True)
class FlightVerdict:
    """What the dumps amount to, the cause first."""

    conclusions: tuple[FlightConclusion, ...] = ()
    ranks: tuple[RecordedRank, ...] = ()
    world: tuple[int, ...] = ()
    """Ranks of the job as far as the dumps tell."""
    dumped: tuple[int, ...] = ()
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Schema version -> ranks."""
    libraries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cut: Mapping[int, str] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    entries: int = 0
    files: tuple[DumpFile, ...] = ()
    wrapped: tuple[int, ...] = ()
    """Ranks whose ring has overwritten its oldest entries."""
