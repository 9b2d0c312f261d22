"""What the ranks of one job say of themselves, small enough for thousands of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_doctor.subjects.network import Interface

WORLD_LIMIT = 1 << 17
"""Ranks that a job is taken to have at most: a world size is a number that anybody can write."""


@dataclass(frozen=True, slots=True)
class RankGpu:
    """The GPU that a rank will use. Bytes, milliwatts, MHz."""

    uuid: str | None = None
    index: int | None = None
    name: str | None = None
    capability: tuple[int, int] | None = None
    memory_total: int | None = None
    power_limit: int | None = None
    clock_sm_max: int | None = None
    fabric_clique: str | None = None
    """Cluster UUID and clique id of a multi-node NVLink domain."""


@dataclass(frozen=True, slots=True)
class RankAdapter:
    """One RDMA port that is active, as `mlx5_0:1`."""

    name: str
    rate_gbps: float | None = None
    link_layer: str | None = None
    firmware: str | None = None
    hca_type: str | None = None


@dataclass(frozen=True, slots=True)
class RankCheckpoint:
    """The checkpoint folder as one rank sees it."""

    path: str
    fstype: str | None = None
    source: str | None = None
    exists: bool | None = None
    total: int | None = None
    sentinels: tuple[str, ...] | None = None
    """Hosts whose sentinel files this rank saw in the folder; None where none were written."""


@dataclass(frozen=True, slots=True)
class RankDigest:
    """One rank. None where it could not be read."""

    rank: int
    host: str | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    master_addresses: tuple[str, ...] | None = None
    """What MASTER_ADDR resolves to here."""
    machine_id: str | None = None
    boot_id: str | None = None
    uptime: float | None = None
    kernel: str | None = None
    python: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    torch_error: str | None = None
    nccl_compiled: str | None = None
    nccl_runtime: str | None = None
    net_plugin: str | None = None
    """File of libnccl-net.so that the loader finds, "" where it finds none, None where it was not asked."""
    driver: str | None = None
    gpu: RankGpu | None = None
    gpu_count: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """NCCL_, TORCH_, GLOO_, CUDA_ and the like; no rank-specific and no secret ones."""
    dists: Mapping[str, str] = field(default_factory=dict)
    clock_offset_seconds: float | None = None
    """Against rank 0; positive is ahead."""
    ipc_namespace: str | None = None
    shm_size: int | None = None
    container: str | None = None
    adapters: tuple[RankAdapter, ...] | None = None
    """Active RDMA ports; empty where the machine has none, None where it could not be read."""
    interfaces: tuple[Interface, ...] = ()
    checkpoint: RankCheckpoint | None = None
    code_version: str | None = None
    """Commit of the git checkout in the working folder."""
    inactive_adapters: int | None = None
    """RDMA ports that are there and not active; None where it could not be read."""
    host_addresses: tuple[str, ...] | None = None
    """What the host's own name resolves to on the host itself."""


@dataclass(frozen=True, slots=True)
class Unreached:
    """A connection between two ranks that was tried and did not come about."""

    source: int
    target: int
    port: int
    kind: str
    """master or ephemeral."""
    reason: str
    address: str | None = None
    """The one that was tried: that of the interface which NCCL would take on the target."""
    reached_at: str | None = None
    """Another address of the target at which the same port answered."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """Connections tried between ranks. `tried` counts them by kind."""

    tried: Mapping[str, int]
    unreached: tuple[Unreached, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSet:
    """The ranks of one job that reported, and what is known of the others."""

    world_size: int
    ranks: tuple[RankDigest, ...]
    """In rank order."""
    node_list: tuple[str, ...] = ()
    """Hosts that the scheduler gave the job, in node order."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Rank -> what is known of one that did not report, such as its last stage or its exit."""
    waited_seconds: float | None = None
    reachability: Reachability | None = None
    silent_hosts: Mapping[int, str] = field(default_factory=dict)
    """Rank -> host of one that came and did not report."""
    claims: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Rank -> hosts of further processes that say they are it."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the world that did not report, up to `WORLD_LIMIT`."""
        here = {r.rank for r in self.ranks}
        return tuple(r for r in range(min(self.world_size, WORLD_LIMIT)) if r not in here)

    @property
    def hosts(self) -> Mapping[str, tuple[int, ...]]:
        """Host -> its ranks that reported; ranks without a host name are left out."""
        found: dict[str, list[int]] = {}
        for r in self.ranks:
            if r.host is not None:
                found.setdefault(r.host, []).append(r.rank)
        return {host: tuple(ranks) for host, ranks in found.items()}
