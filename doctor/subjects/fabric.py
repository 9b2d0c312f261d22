"""What a probe's measurements amount to: figures per collective, who is slow, and what was to be expected.

`fsdp_doctor.probe.verdicts.conclude` draws these conclusions once; checks turn them into findings and the
command prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = "compute"
LATE = "late"
TRANSFER = "transfer"
LINK = "link"
NODE = "node"
RAIL = "rail"
COPY = "copy"
EITHER_END = "either end"
KINDS = (COMPUTE, LATE, TRANSFER, LINK, NODE, RAIL, COPY, EITHER_END)

MISSING = "missing"
DIED = "died"
HUNG = "hung"
DUPLICATE_GPU = "duplicate GPU"


@dataclass(frozen=True, slots=True)
class Figure:
    """One collective at one size. Per iteration the slowest rank counts. Seconds, GB/s (10^9)."""

    op: str
    bytes: int
    group: str
    ranks: int
    run: int
    count: int
    minimum: float
    median: float
    p90: float
    p99: float
    maximum: float
    interval: tuple[float, float]
    """95 % confidence interval of the median."""
    variation: float
    """Standard deviation over mean."""
    algbw: float
    busbw: float
    barrier: bool
    """Whether a barrier stood before each iteration; without one the time holds the ranks' skew too."""
    back_to_back: float | None = None
    """Median of the loop without barrier, as in training."""
    correct: bool | None = None

    @property
    def skew(self) -> float | None:
        """Seconds that iterations back to back take longer than those behind a barrier."""
        return None if self.back_to_back is None else max(self.back_to_back - self.median, 0.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """One small collective against what is too long. Seconds."""

    op: str
    bytes: int
    seconds: float
    limit: float


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank, link, node or rail that is slower than its peers by a measurement that can tell."""

    kind: str
    """One of `KINDS`."""
    ratio: float
    """How many times slower than its peers."""
    value: float
    reference: float
    unit: str
    """Of `value` and `reference`: GB/s, ms."""
    ranks: tuple[int, ...] = ()
    host: str | None = None
    rail: int | None = None
    source: int | None = None
    target: int | None = None
    """Of a slow link or transfer; a link that is slow both ways has the lower rank as source."""
    both_ways: bool = True
    scope: str = ""
    """Where it is slow: inside the node, between nodes, sending, receiving, h2d, d2h."""
    confirmed: bool = False
    """Measured again with the same outcome."""
    fails: bool = False
    """Far enough below its peers, and confirmed."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expectation:
    """GB/s (busbw) that the links allow a large collective, and where that comes from."""

    op: str
    low: float
    high: float
    basis: str
    bend: int = 0
    """Bytes of an array that costs as much again as its bytes do: `low` counts for arrays well above."""
    firm: bool = True
    """Whether the figure was measured on this kind of machine; else a shortfall is only a warning."""

    def low_at(self, size: int) -> float:
        """The expected low end at a size."""
        return self.low * size / (size + self.bend) if size > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A large collective below its expected low end."""

    op: str
    bytes: int
    busbw: float
    expected: Expectation
    low: float
    """`expected.low` at this size."""
    ratio: float
    confirmed: bool
    detour: bool = False
    """So far below that the bytes must go another way; said by a `Detour`."""


@dataclass(frozen=True, slots=True)
class Detour:
    """Bytes take a slower path than the machine has."""

    path: str
    """In words, such as "TCP sockets instead of InfiniBand"."""
    expected: str
    variables: tuple[str, ...] = ()
    """Variables set in the ranks that can cause it."""
    network: bool = False
    """Between nodes, not inside one."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Jitter:
    """A collective whose slow iterations are far from its median."""

    op: str
    bytes: int
    ratio: float
    measure: str
    """p99 or max."""
    count: int
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter that grew during the probe."""

    name: str
    plain: str
    meaning: str
    """BROKEN, ERRORS, CONGESTION or HEAT (`fsdp_doctor.tables.probe_counters.Growth`)."""
    delta: int
    rank: int
    host: str


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds that starting took: `what` is import or init; `ranks` are outliers, empty if all are slow."""

    what: str
    seconds: float
    limit: float
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Wrong bytes after a collective."""

    op: str
    bytes: int
    group: str
    receivers: tuple[int, ...]
    """Ranks that hold a wrong result."""
    slices: tuple[int, ...]
    """Ranks whose part was wrong."""
    pattern: str
    """What the pattern of wrong slices says, in words."""
    first_bad: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the probe did not run through on some ranks: the cause, not those that it took along."""

    kind: str
    """MISSING, DIED, HUNG or DUPLICATE_GPU."""
    ranks: tuple[int, ...]
    stage: str
    words: str
    """What is known of the end: signal, exit code, the exception's last line."""
    victims: tuple[int, ...] = ()
    """Ranks that failed because of it."""
    hosts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fabric:
    """All conclusions of one probe."""

    figures: tuple[Figure, ...] = ()
    latencies: tuple[Latency, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    examined: tuple[str, ...] = ()
    """Kinds of culprit that the measurements of all ranks could have named."""
    unfinished: tuple[str, ...] = ()
    """Kinds that they could have named with more time: some ranks or pairs were measured and others not."""
    undecided: tuple[Culprit, ...] = ()
    """Slow by the limits of a quiet machine, not by those of a busy one: nobody is accused of it."""
    busy: str = ""
    """Why the limits of a busy machine count; "" where they do not."""
    expectations: tuple[Expectation, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    detours: tuple[Detour, ...] = ()
    unexpected: str = ""
    """Why no collective was held against an expected bandwidth; "" where some were."""
    jitters: tuple[Jitter, ...] = ()
    unsteady: str = ""
    """Why spread was not judged; "" where it was."""
    grown: tuple[Grown, ...] = ()
    counted: int = 0
    """Counters that were read before and after on some rank."""
    starts: tuple[Start, ...] = ()
    started: tuple[str, ...] = ()
    """What of starting was timed, with its figure, such as "init 2.1 s"."""
    mismatches: tuple[Mismatch, ...] = ()
    verified: int = 0
    """Collectives whose data were compared."""
    failures: tuple[Failure, ...] = ()
    finished: int = 0
    """Ranks that ran through."""
    summary: tuple[str, ...] = ()
    """What was compared, with the figures."""
