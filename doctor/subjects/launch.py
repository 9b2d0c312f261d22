"""A launch command as it was read, not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Launch:
    """torchrun, accelerate launch, srun, mpirun, python -m torch.distributed.run, python."""

    launcher: str
    """torchrun, accelerate, srun, mpirun, deepspeed, python."""
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Assignments in front of the command (`A=1 torchrun …`, `env A=1 …`)."""
    nproc_per_node: int | None = None
    nproc_spec: str | None = None
    """As written where it is no number: auto, gpu, cpu."""
    nodes: tuple[int, int] | None = None
    """Minimum and maximum number of nodes."""
    node_rank: int | None = None
    world_size: int | None = None
    standalone: bool = False
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    config_file: str | None = None
    config: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """Scalars of accelerate's configuration file."""
    config_error: str | None = None
    script: str | None = None
    module: str | None = None
    """With -m."""
    script_arguments: tuple[str, ...] = ()
    script_exists: bool | None = None
    script_error: str | None = None
    """Why the script cannot be read: missing, a folder, no permission, not Python text."""
    python: str | None = None
    """The interpreter named in the command."""
    problems: tuple[str, ...] = ()
    """What the launcher itself would refuse, in words."""
