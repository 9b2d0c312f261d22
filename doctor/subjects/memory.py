"""What a configuration needs of a GPU's memory, as predicted for one rank. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One optimizer step, as torch.cuda.max_memory_allocated counts over a warmed base."""

    fwd_bwd_peak: int
    after_backward: int
    opt_peak: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of tensor holds at the peak."""

    name: str
    bytes: int
    tensors: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Tensors of one size, operator and module that live at the peak."""

    operator: str
    module: str
    bytes: int
    """Of one of them."""
    count: int
    part: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest moment."""

    step: int
    phase: str
    operator: str
    module: str
    parts: tuple[Part, ...]
    holders: tuple[Holder, ...]
    """The largest ones."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Tensors at the peak that one change of the program would take away."""

    name: str
    """loss: logits and what the loss makes of them; scores: tokens by tokens, of attention; activations: what
    the forward of blocks keeps for their backward."""
    bytes: int
    tensors: int
    modules: tuple[str, ...]
    """Those that made them; of activations the blocks."""
    without: int | None
    """The highest allocated bytes if they were not made (of activations: but those of one block); None where
    that cannot be said."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One phase of the timeline."""

    step: int
    phase: str
    peak: int
    after: int


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a process takes besides the allocator's blocks that are counted."""

    context: int
    libraries: int
    """cuBLAS workspaces: blocks of the allocator that a warm program always holds."""
    nccl: int
    basis: str

    @property
    def total(self) -> int:
        """All of it."""
        return self.context + self.libraries + self.nccl


@dataclass(frozen=True, slots=True)
class HostNeed:
    """What tensors take of a host's memory; the processes themselves come on top."""

    peak: int
    """Of one rank: plain tensors, and pinned blocks as the caching host allocator holds them."""
    pinned: int = 0
    """Of which pinned: each block is rounded up to a power of two, and is kept when it is freed."""
    pinned_requested: int = 0
    """What the pinned tensors hold."""
    ranks: int = 1
    """Ranks that share a node."""
    capacity: int | None = None
    """Memory of the node; None where it is unknown."""

    @property
    def node(self) -> int:
        """Of all ranks of a node."""
        return self.peak * self.ranks


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that the replay could not know."""

    place: str
    what: str
    times: int


@dataclass(frozen=True, slots=True)
class RuleUsed:
    """A rule of the table of substitutions that a replay asked."""

    operator: str
    kernel: str
    """Which one CUDA chooses."""
    saves: str
    workspace: str
    mark: str
    """On the GPU that was asked for: measured, assumed, or calibrated if --calibrate measured each call."""
    evidence: str
    seen: str
    """Where the rule was measured: architecture, torch and cuDNN; empty where it never was."""


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """The answer of a dry-run."""

    steps: tuple[StepMemory, ...]
    peak: Peak
    allocated: int
    """The highest allocated bytes."""
    reserved_low: int
    reserved_high: int
    """Reserved where freed blocks are reusable at once, and where they wait for events."""
    reserved_expandable: int
    steady: int
    """Between two steps."""
    host: HostNeed
    overhead: Overhead
    margin: int
    """Added to `allocated` before it is compared with the GPU."""
    gpu: str
    capacity: int | None
    timeline: tuple[Moment, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    unknown_operators: tuple[tuple[str, int], ...] = ()
    """Operators without a measured or derived rule, and the bytes they hold at the peak."""
    preparation: int = 0
    """The highest allocated bytes before the first step, which `allocated` leaves out."""
    rules: tuple[RuleUsed, ...] = ()
    """How CUDA runs operators of the job otherwise than their shapes say, and how that is known."""
    causes: tuple[Cause, ...] = ()
    """What makes the peak and a change of the program would take away, the largest first."""

    def cause(self, name: str) -> Cause | None:
        """The cause of a name, where it is one."""
        return next((c for c in self.causes if c.name == name), None)

    @property
    def highest(self) -> int:
        """Allocated at the highest moment, preparation included."""
        return max(self.allocated, self.preparation)

    @property
    def needed(self) -> int:
        """What must fit: allocated with its margin, or what the preparation takes, and the overhead."""
        return max(self.allocated + self.margin, self.preparation) + self.overhead.total

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where no GPU was named."""
        return None if self.capacity is None else self.needed <= self.capacity

    @property
    def device(self) -> int:
        """What nvidia-smi would show at most: reserved and overhead."""
        return self.reserved_high + self.overhead.total


@dataclass(frozen=True, slots=True)
class ReplayProblem:
    """Why a configuration has no forecast."""

    kind: str
    """model, batch, loss, class, failed (the training itself would fail); operator, time, child, torch (it
    could not be judged)."""
    text: str
    file: str | None = None
    line: int | None = None
    trace: str = ""
    lacks: str = ""
    """gpu, network, input, values, memory: what it asks for that the job has, and its rehearsal has not."""


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The configuration that was asked for and what came of it: a forecast, or a problem."""

    api: str
    strategy: str
    world_size: int
    optimizer: str
    accumulate: int
    no_sync: bool
    offload: bool
    wrap: tuple[str, ...]
    checkpoint: tuple[str, ...]
    forecast: MemoryForecast | None = None
    problem: ReplayProblem | None = None
