"""Who this process is in its job, and where rank 0 is found: a pure reading of what the launcher says."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_doctor.subjects.scheduler import Scheduler

DEFAULT_PORT = 29500
"""torch's own default for MASTER_PORT."""
WORLD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Alone:
    """No peers to talk to, and why; `wanted` where there should have been some."""

    reason: str
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """One rank of a job. `address` is a host name or an address of rank 0."""

    rank: int
    world_size: int
    address: str
    port: int
    address_from: str = "MASTER_ADDR"
    local_rank: int | None = None
    local_world_size: int | None = None
    node_list: tuple[str, ...] = ()
    job_id: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which gathers the others."""
        return self.rank == 0


def context(scheduler: Scheduler) -> Context | Alone:
    """The place of this process in its job. Never raises."""
    rank, world = scheduler.rank, scheduler.world_size
    if scheduler.launcher == "none" or world is None:
        return Alone("no launcher set a rank and a world size")
    if world < 2:
        return Alone("the job has one rank")
    if rank is None:
        return Alone("the launcher says no rank that can be read", wanted=True)
    if rank >= world or world > WORLD_LIMIT:
        return Alone(f"rank {rank} of {world} cannot be", wanted=True)
    found = _address(scheduler, world)
    if found is None:
        return Alone("where rank 0 is, is not known: MASTER_ADDR is not set", wanted=True)
    return Context(
        rank=rank,
        world_size=world,
        address=found[0],
        port=scheduler.master_port or DEFAULT_PORT,
        address_from=found[1],
        local_rank=scheduler.local_rank,
        local_world_size=scheduler.local_world_size,
        node_list=scheduler.node_list,
        job_id=scheduler.job_id,
    )


def _address(scheduler: Scheduler, world: int) -> tuple[str, str] | None:
    """Rank 0's address and what named it."""
    if scheduler.master_addr and scheduler.master_addr.strip():
        return scheduler.master_addr.strip().strip("[]"), "MASTER_ADDR"
    if scheduler.local_world_size == world or scheduler.nodes == 1:
        return "127.0.0.1", "all ranks are on this host"
    if scheduler.launcher == "slurm" and scheduler.node_list:
        return scheduler.node_list[0], "the first host of the node list"
    return None
