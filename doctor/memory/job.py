"""One configuration to replay, in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

APIS = ("fsdp2", "fsdp1", "ddp")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
RESHARD = "RESHARD_INT:"
UNSHARDED = ("FULL_SHARD", "NO_SHARD")
"""What --strategy may say of ddp: nothing, which is the default, or what it does."""
PREFETCHES = ("pre", "post", "none")
DDP_FLAGS = {
    "bucket_cap_mb": "--bucket-cap-mb",
    "gradient_as_bucket_view": "--gradient-as-bucket-view",
    "static_graph": "--static-graph",
    "find_unused_parameters": "--find-unused-parameters",
}
DTYPES = ("float32", "bfloat16", "float16", "float64")
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"}
OPTIMIZERS = (
    "adamw",
    "adamw_fused",
    "adamw_loop",
    "adam",
    "adam_fused",
    "sgd",
    "sgdm",
    "sgd_fused",
    "rmsprop",
    "adagrad",
    "adafactor",
)
REFUSED_OPTIMIZERS = {
    "8bit": "8-bit optimizers keep their state in kernels of their own, which have no shape-only form",
    "muon": "Muon's temporaries are not modelled",
    "shampoo": "Shampoo's preconditioners are not modelled",
}


class JobError(ValueError):
    """The configuration contradicts itself; the message says which flag to change."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained and how. Names and defaults are those of the flags."""

    model: str
    batch: str | None
    world_size: int
    model_args: Mapping[str, object] = field(default_factory=dict)
    batch_args: Mapping[str, object] = field(default_factory=dict)
    api: str = "fsdp2"
    strategy: str = "FULL_SHARD"
    shard_size: int | None = None
    wrap: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    optimizer: str = "adamw"
    accumulate: int = 1
    no_sync: bool = False
    clip: bool = False
    offload: bool = False
    imbalance: float = 1.0
    ignored: tuple[str, ...] = ()
    """Classes whose parameters are kept out of sharding."""
    use_orig_params: bool = True
    """FSDP1's argument."""
    plan_only: bool = False
    steps: int = 2
    forward_prefetch: int = 0
    """FSDP2: units that each unit gathers ahead in forward; FSDP1: not 0 for forward_prefetch=True."""
    backward_prefetch: str | None = None
    """FSDP1: pre, post or none; FSDP2: a number of units."""
    limit_all_gathers: bool = True
    """FSDP1's argument."""
    bucket_cap_mb: float | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    """The last four are DistributedDataParallel's arguments."""
    keep_ties: bool = False
    """FSDP1 and DDP: tied weights stay one, as in a model that is built with memory."""
    ranks_per_node: int = 8
    """Ranks that share a node: they share its host memory, and FSDP1's hybrid strategies shard among them."""
    host_gib: float | None = None
    """Memory of a node in GiB; None where it is not known."""

    def validate(self) -> None:
        """Raises `JobError` for what cannot be run, before a child is started for it."""
        for name in REFUSED_OPTIMIZERS:
            if name in self.optimizer.lower():
                raise JobError(f"--optimizer {self.optimizer}: {REFUSED_OPTIMIZERS[name]}")
        if self.optimizer not in OPTIMIZERS:
            raise JobError(f"--optimizer {self.optimizer}: one of {', '.join(OPTIMIZERS)}")
        reshard = self.reshard
        if self.strategy not in STRATEGIES and reshard is None:
            raise JobError(f"--strategy {self.strategy}: one of {', '.join(STRATEGIES)}, RESHARD_INT:k")
        if reshard is not None and (self.api != "fsdp2" or reshard < 2 or self._group % reshard):
            raise JobError(
                f"--strategy {self.strategy}: FSDP2 alone reshards to k ranks, and k must divide the "
                f"{self._group} ranks of a shard group"
            )
        if self.shard_size is not None and self.world_size % self.shard_size:
            raise JobError(
                f"--shard-size {self.shard_size} does not divide --world-size {self.world_size}: "
                "a hybrid mesh has world size / shard size groups"
            )
        if self.strategy in HYBRID and self.shard_size is None and self.world_size % self.ranks_on_node:
            raise JobError(
                f"--strategy {self.strategy}: --world-size {self.world_size} is no whole number of nodes of "
                f"{self.ranks_on_node} ranks (--ranks-per-node)"
            )
        if self.api == "fsdp2" and self.strategy == "NO_SHARD":
            raise JobError("--strategy NO_SHARD is fsdp1's: with fsdp2 take --shard-size 1, or --api ddp")
        if self.api == "fsdp1" and self.shard_size is not None and self.strategy not in HYBRID:
            raise JobError(f"--shard-size with fsdp1 needs --strategy HYBRID_SHARD, not {self.strategy}")
        if self.api == "ddp" and (self.param_dtype or self.reduce_dtype):
            raise JobError("--param-dtype and --reduce-dtype are FSDP's: with ddp take --autocast or --dtype")
        if self.api == "ddp" and (self.shard_size is not None or self.strategy not in UNSHARDED):
            said = "--shard-size" if self.shard_size is not None else f"--strategy {self.strategy}"
            raise JobError(f"{said}: ddp shards nothing")
        if self.api == "ddp" and (self.offload or self.wrap or self.ignored):
            raise JobError("--api ddp has neither units (--wrap, --ignored-modules) nor --offload")
        if self.api != "fsdp1" and not self.use_orig_params:
            raise JobError(f"--no-use-orig-params is an argument of fsdp1, not of {self.api}")
        if self.api != "fsdp1" and not self.limit_all_gathers:
            raise JobError(f"--no-limit-all-gathers is an argument of fsdp1, not of {self.api}")
        self._validate_prefetch()
        for name, flag in DDP_FLAGS.items():
            if getattr(self, name) and self.api != "ddp":
                raise JobError(f"{flag} is an argument of ddp, not of {self.api}")

    def _validate_prefetch(self) -> None:
        said = self.backward_prefetch
        if self.api == "ddp" and (said is not None or self.forward_prefetch):
            raise JobError("--forward-prefetch and --backward-prefetch: ddp gathers nothing")
        if self.api == "fsdp1" and said is not None and said not in PREFETCHES:
            raise JobError(f"--backward-prefetch {said} with fsdp1: one of {', '.join(PREFETCHES)}")
        if self.api == "fsdp2" and said is not None and not (said.isdecimal() and int(said) > 0):
            raise JobError(
                f"--backward-prefetch {said} with fsdp2: a number of units (set_modules_to_backward_prefetch)"
            )

    @property
    def reshard(self) -> int | None:
        """K of RESHARD_INT:k."""
        rest = self.strategy.removeprefix(RESHARD)
        return int(rest) if rest != self.strategy and rest.isdigit() else None

    @property
    def _group(self) -> int:
        return self.shard_size or self.world_size

    @property
    def shard_group(self) -> int:
        """Ranks over which parameters are sharded."""
        if self.api == "ddp" or (self.strategy == "NO_SHARD" and self.api == "fsdp1"):
            return 1
        if self.strategy in HYBRID and self.shard_size is None:
            return self.ranks_on_node
        return self._group

    @property
    def ranks_on_node(self) -> int:
        """Ranks of one node of this job."""
        return min(self.ranks_per_node, self.world_size)

    @property
    def groups(self) -> int:
        """NCCL communicators that the run opens: one more for replicas, and for RESHARD_INT's k ranks."""
        replicas = self.shard_group not in (1, self.world_size)
        return 1 + replicas + (self.reshard not in (None, self.shard_group))

    def to_json(self) -> dict[str, object]:
        """For the child."""
        return asdict(self)
