"""What a probe asked for and what its ranks measured. Seconds, bytes; names as torch and NCCL use them.

Every value here is plain JSON (`fsdp_doctor.codec`): an object per dataclass with its field names,
an array per tuple. Workers write a `RankMeasurement` each; a field with a default may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL_GATHER = "all_gather"
REDUCE_SCATTER = "reduce_scatter"
ALL_REDUCE = "all_reduce"
BROADCAST = "broadcast"
ALL_TO_ALL = "all_to_all"
OPS = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, ALL_TO_ALL)
FSDP_OPS = (ALL_GATHER, REDUCE_SCATTER)
"""The collectives that carry FSDP's bytes; all-reduce joins them under HYBRID_SHARD only."""

WORLD = "world"
"""`group` of a collective over all ranks. Others are `node:HOST` (the ranks of one host) and `rail:I`
(the ranks with local rank I, one per host)."""

STAGES = (
    "spawn",
    "import",
    "rendezvous",
    "group",
    "connect",
    "data",
    "work",
    "copies",
    "sweep",
    "pairs",
    "done",
)
"""In order, as a rank enters them: started, importing torch, waiting for the others at the store, creating
the process group, first collective, data check, fixed work alone, copies between host and GPU, collectives,
transfers between pairs, finished."""


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What every rank runs."""

    backend: str
    """gloo or nccl."""
    ops: tuple[str, ...] = (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)
    sizes: tuple[int, ...] = ()
    """Bytes of the whole array, as nccl-tests counts them: n times one rank's part for all-gather and
    reduce-scatter, the tensor itself for all-reduce and broadcast. Each is a multiple of world size x 4."""
    unit_sizes: tuple[int, ...] = ()
    """Those of `sizes` that are the user's own FSDP units."""
    warmup: int = 5
    iterations: int = 20
    """Most iterations per operation and size of at least 64 MiB."""
    iterations_small: int = 100
    """Most iterations per operation and smaller size."""
    size_seconds: float = 3.0
    """Most seconds per operation and size."""
    work_repeats: int = 20
    copy_bytes: tuple[int, ...] = ()
    """Sizes of copies between host and GPU; empty on CPU."""
    pair_bytes: tuple[int, ...] = ()
    """Sizes of the transfers between pairs; empty where no pairs are tried."""
    pair_repeats: int = 5
    dtype: str = "bfloat16"
    deadline_seconds: float = 60.0
    timeout_seconds: float = 30.0
    """After which a collective is given up (the process group's timeout)."""


@dataclass(frozen=True, slots=True)
class CollectiveTiming:
    """One rank's iterations of one collective at one size in one group, warm-up left out."""

    op: str
    bytes: int
    seconds: tuple[float, ...] = ()
    """Own entry to own exit per iteration, back to back as in training: no barrier between them."""
    barrier_seconds: tuple[float, ...] = ()
    """The same with a barrier before each entry, outside of the timed part. All ranks of a group run the
    same number of iterations, in `seconds` and in `barrier_seconds`."""
    think_seconds: tuple[float, ...] = ()
    """Own exit of an iteration to own entry of the next, in the loop without barrier."""
    group: str = WORLD
    correct: bool | None = None
    """Whether the buffers of the timed iterations held the right bytes; None where that was not checked."""
    bad_slices: tuple[int, ...] = ()
    """Positions in the group (ranks, for `world`) whose slice of the result was wrong."""
    first_bad: str | None = None
    """The first wrong element in words: offset, value, expected value."""
    run: int = 0
    """0 for the first measurement, 1 for a repetition that confirms it."""


@dataclass(frozen=True, slots=True)
class WorkTiming:
    """The same fixed work (matrix products) on every rank at once, without communication, per repeat."""

    wall_seconds: tuple[float, ...] = ()
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of the thread in each repeat; empty where the work ran on a GPU."""
    flops: float | None = None
    """Floating-point operations of one repeat."""
    device: str = "cpu"
    run: int = 0
    waited_seconds: tuple[float, ...] = ()
    """Of each repeat's wall time, what the thread was ready to run while another had the core."""


@dataclass(frozen=True, slots=True)
class CopyTiming:
    """Copies between pinned host memory and the rank's GPU, all ranks at once or one after the other."""

    direction: str
    """h2d or d2h."""
    bytes: int
    seconds: tuple[float, ...] = ()
    alone: bool = False
    """No other rank copied meanwhile."""
    run: int = 0


@dataclass(frozen=True, slots=True)
class PairTiming:
    """One direction between two ranks in one round of the tournament; other pairs transfer meanwhile.

    Timed by the source: from its send to the receipt of a short answer that the target gives after the
    whole payload. Only the source reports it, so both directions come from two ranks.
    """

    source: int
    target: int
    bytes: int
    seconds: tuple[float, ...] = ()
    round: int = 0
    run: int = 0
    """0 in the tournament, 1 when the pair was tried again (first with others in flight, then alone)."""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception that ended a rank, or the last lines it wrote where it left none."""

    kind: str
    """The exception's class such as DistBackendError; "" where there was none."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """What was taken of a machine's cores while a rank measured."""

    machine: str
    """Its kernel's boot id: ranks in containers of one machine share it."""
    cores: int
    seconds: float
    taken_seconds: float
    """Of all cores, by all processes, with time that a hypervisor gave to others."""
    own_seconds: float
    """Of CPU time, by this rank."""


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """One rank: who it is, how far it came, what it measured."""

    rank: int
    host: str = ""
    local_rank: int | None = None
    pid: int | None = None
    gpu: int | None = None
    """CUDA device index as the rank sees it; None on CPU."""
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    bdf: str | None = None
    """PCI address of the GPU."""
    cores: int | None = None
    """CPU cores that the process may run on."""
    load: MachineLoad | None = None
    numa: int | None = None
    """NUMA node of the GPU, or of the process on CPU: pairs on one node and across are compared apart."""
    import_seconds: float | None = None
    init_seconds: float | None = None
    """Creating the process group, from the moment the last rank had arrived at the store."""
    connect_seconds: float | None = None
    """The first collective, in which the backend connects."""
    work: tuple[WorkTiming, ...] = ()
    copies: tuple[CopyTiming, ...] = ()
    collectives: tuple[CollectiveTiming, ...] = ()
    pairs: tuple[PairTiming, ...] = ()
    counters_before: Mapping[str, int] = field(default_factory=dict)
    """Counter -> value; names as in `fsdp_doctor.tables.probe_counters`: `nvlink/crc_flit`,
    `pcie/replay`, `clocks/hw_thermal_ns`, `ib/mlx5_0:1/symbol_error`, `net/eth0/rx_bytes`. Adapters' counters
    belong to the host: one rank per host is enough."""
    counters_after: Mapping[str, int] = field(default_factory=dict)
    stage: str = "spawn"
    """The last of `STAGES` that the rank entered."""
    detail: str = ""
    """What it did in that stage, such as "all_gather 1 MiB"."""
    exit_code: int | None = None
    """Of the process, negative for a signal; None while it still ran or where only the rank itself knows."""
    hung: bool = False
    """It was still running, and not finished, at the deadline."""
    error: RankError | None = None
    stack: str | None = None
    """Python stack of a rank that hung, where it could be taken."""


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """What one host's links are, from NVML and sysfs. Unidirectional payload in GB/s (10^9)."""

    host: str
    gpus: int | None = None
    gpu_name: str | None = None
    nvlink_gbps: float | None = None
    """Sum over one GPU's active NVLinks; 0 where there are none; None where NVML does not say (virtual
    machines), then the product's table is used."""
    pcie_gbps: float | None = None
    """One GPU's PCIe link at its best."""
    nic_gbps: float | None = None
    """Sum over the adapters that NCCL may use; None where not known."""
    nics: int | None = None
    nic_kind: str | None = None
    """InfiniBand, RoCE, EFA or Ethernet."""
    p2p: bool | None = None
    """Whether the driver offers P2P between the GPUs; False on GeForce."""


@dataclass(frozen=True, slots=True)
class Transports:
    """What the backend said it uses, from NCCL's INFO lines. Empty where it was not asked."""

    network: str | None = None
    """Socket, IB, or the plug-in's name."""
    channels: tuple[str, ...] = ()
    """Kinds of its channels: P2P/CUMEM, P2P/IPC, SHM/direct, NET/Socket/0, NET/IB/0/GDRDMA …"""
    nvls: bool | None = None
    """Whether NVLink SHARP was set up."""
    version: str | None = None
    lines: tuple[str, ...] = ()
    """The log lines that say so."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe of one job."""

    world_size: int
    backend: str
    plan: ProbePlan
    ranks: tuple[RankMeasurement, ...] = ()
    """Ranks that reported anything, also those that then failed."""
    missing: tuple[int, ...] = ()
    """Ranks that never reported."""
    silent: tuple[int, ...] = ()
    """Ranks that reported, did not finish and left no error."""
    device: str = "cpu"
    """cpu or cuda."""
    rotated: bool = False
    """The ranks use the GPUs in rotated order: rank i of a node has another GPU than i."""
    links: tuple[NodeLinks, ...] = ()
    transports: Transports | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """NCCL_, GLOO_ and TORCH_ variables of the ranks."""
    torch: str | None = None
    nccl: str | None = None
    seconds: float = 0.0
    deadline_passed: bool = False
    skipped: tuple[str, ...] = ()
    """Steps that the ranks agreed to leave out because one of them could not do them, with its reason."""
