"""Who started this process: torchrun, SLURM, MPI, Kubernetes, or nobody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A pure reading of the environment; counts are None where the launcher does not say."""

    launcher: str
    """torchrun, slurm, mpi, env (RANK and WORLD_SIZE by hand or an operator) or none."""
    resource_manager: str | None = None
    """slurm, kubernetes, lsf, pbs or None."""
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    nodes: int | None = None
    node_list: tuple[str, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    problems: tuple[str, ...] = ()
    """Variables that do not parse, in words."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Where facts came from: the live machine or a recording of one rank of `world_size`."""

    host: str | None
    rank: int | None
    world_size: int | None
    created: str | None = None
    clock_offset_seconds: float | None = None
    recorded: bool = False
