"""From which ratio on a measurement is an outlier: against peers, against expected values, against itself."""

from __future__ import annotations

from dataclasses import dataclass

CHECKED_ON = "2026-12"
SOURCE = "Repeated probes of CPU ranks on shared cores; published sweeps and per-link spreads of H200 nodes"


@dataclass(frozen=True, slots=True)
class Floors:
    """How much slower than its peers a rank or link must be. Ratios are peers' figure over own figure."""

    warn: float
    fail: float
    work: float
    """Fixed work: own time over the others'."""
    think_share: float
    """Own pause between collectives, as a part of a collective's time."""
    think_seconds: float
    """And at least so long."""
    once: float
    """Ratio from which a single measurement may warn; a failure always needs the repetition."""
    unqueued: bool = False
    """Fixed work without the time in which the rank queued for its core, where that is known."""


HARDWARE = Floors(
    warn=1 / 0.93, fail=1 / 0.85, work=1 / 0.93, think_share=0.10, think_seconds=0.0005, once=1 / 0.85
)
"""Healthy GPUs, links and adapters of one kind differ by a few per cent; eight PCIe links by 0.2 %."""
SHARED_CPU = Floors(warn=2.0, fail=2.0, work=2.0, think_share=0.25, think_seconds=0.002, once=5.0)
"""Processes that share cores differ by half for no reason; 1.7 accused healthy links, 2.0 did not. Under
load one look at a healthy pair may show 3.4, which its repetition takes back."""

BUSY_CPU = Floors(
    warn=SHARED_CPU.warn**2,
    fail=SHARED_CPU.fail**2,
    work=SHARED_CPU.work,
    think_share=SHARED_CPU.think_share,
    think_seconds=SHARED_CPU.think_seconds,
    once=float("inf"),
    unqueued=True,
)
"""Where other processes use the ranks' cores both sides of a comparison are disturbed, each by as much as
the floor of a quiet machine allows for: the product of the two. One look counts for nothing then. Fixed work
keeps its floor where the time that a rank queued for its core is known and taken out."""
BUSY_SHARE = 0.25
"""Part of a machine's cores that other processes take, from which on it is busy: one core of four."""
BUSY_WAIT = 1.5
"""The same where only the wait of the fixed work is known, beyond what the ranks' own number explains."""

UNDISTURBED = 0.2
"""Share of the repeats of fixed work on a core that others leave alone, even where the machine is full."""
STARVED = 1.5
"""Wall over CPU time of fixed work, against the others', from which a rank waited for its core."""
ISOLATED_SHARE = 0.25
"""Part of an end's pairs that may be slow for one of them to be a bad link; more is the machine's layout."""

NODE_WARN, NODE_FAIL = 1 / 0.95, 1 / 0.88
"""A collective inside one node or rail against the median of the others."""

ABSOLUTE_FROM = 512 << 20
"""Bytes from which a collective may be held against an expected bandwidth."""
ABSOLUTE_PASS, ABSOLUTE_FAIL, WRONG_PATH = 0.95, 0.75, 0.40
"""Parts of the expected low end."""

JITTER_FROM = 16 << 20
"""Bytes from which spread is the fabric's and not the launch's."""
JITTER_WARN, JITTER_FAIL = 1.5, 3.0
JITTER_COUNT = 20
"""Iterations from which the maximum may be held against the median."""

LATENCY_CPU = 0.050
LATENCY_ONE_NODE = 0.001
LATENCY_NODES = 0.0025
LATENCY_HOP = 10e-6
"""Seconds of a collective of at most 64 KiB that are too many, and what each rank of a ring may add."""

INIT_SECONDS = 30.0
INIT_PER_RANK = 0.05
"""Seconds of creating the group and of the first collective: base, and per rank of the job."""
INIT_OUTLIER, INIT_OUTLIER_SECONDS = 5.0, 10.0
IMPORT_SECONDS = 60.0

BUSY_BYTES = 1 << 30
"""Memory of a GPU beyond which somebody uses it, where the driver shows no processes (in containers)."""
