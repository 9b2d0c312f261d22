"""What each way to save and to load a checkpoint takes, and what the machine has. All sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Way(str, Enum):
    """One way to save or to load."""

    SAVE_DCP = "dcp"
    SAVE_ASYNC = "async"
    SAVE_FULL = "full"
    """The whole state dict on every rank, where the parameters are: FSDP1's default."""
    SAVE_FULL_OFFLOAD = "full-offload"
    """The whole state dict in host memory of every rank."""
    SAVE_RANK0 = "rank0"
    """The whole state dict in host memory of rank 0."""
    SAVE_PLAIN = "plain"
    """model.state_dict() as it is."""
    SAVE_PER_RANK = "per-rank"
    LOAD_DCP = "load-dcp"
    LOAD_BROADCAST = "load-broadcast"
    LOAD_MMAP = "load-mmap"
    LOAD_EACH = "load-each"
    LOAD_PER_RANK = "load-per-rank"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way takes beyond what training holds anyway."""

    way: Way
    saves: bool
    call: str
    """The calls, as code spells them."""
    gpu_per_rank: int
    host_rank0: int
    host_per_rank: int
    """Of a rank that is not rank 0."""
    host_per_node: int
    """Of the node with rank 0."""
    disk: int = 0
    """Written by a save."""
    page_cache_per_node: int = 0
    """Given back under pressure; not counted against limits."""
    note: str = ""
    advised: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node has; None where it is not known."""

    host: int | None = None
    host_source: str = ""
    gpu: int | None = None
    """Of one GPU, less what training holds: parameters, gradients and optimizer shards."""
    gpu_source: str = ""
    disk: int | None = None
    disk_path: str = ""


@dataclass(frozen=True, slots=True)
class CostPlan:
    """All ways for one model and job."""

    costs: tuple[Cost, ...]
    limits: Limits
    world_size: int
    ranks_per_node: int
    parameters: int
    """Bytes of parameters and buffers."""
    optimizer: int
    """Bytes of optimizer state."""
    largest: int | None = None
    """Bytes of the largest tensor; None where only the number of parameters is known."""
    api: str = "fsdp2"
    chosen: tuple[Way, ...] = ()
    """Ways that the caller uses; all where none was named."""
