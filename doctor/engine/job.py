"""How many ranks the job puts on this node and how many nodes it has, from the best evidence there is."""

from __future__ import annotations

from fsdp_doctor.engine.options import Options
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Scheduler

USES: tuple[type[object], ...] = (Launch, Scheduler, Gpus)
"""What a check that calls these functions adds to its `uses`."""


def local_ranks(facts: Facts, options: Options) -> int:
    """Ranks on this node: `--nproc`, the launch command, the launcher's environment, else one per GPU."""
    if options.nproc is not None:
        return options.nproc
    launch = facts.find(Launch)
    if launch is not None and launch.nproc_per_node is not None:
        return launch.nproc_per_node
    scheduler = facts.find(Scheduler)
    if scheduler is not None and scheduler.local_world_size is not None:
        return scheduler.local_world_size
    return max(visible_gpus(facts), 1)


def visible_gpus(facts: Facts) -> int:
    """GPUs that CUDA would show to a process of this environment."""
    gpus = facts.find(Gpus)
    if gpus is None:
        return 0
    return len(gpus.visible) if gpus.visible is not None else len(gpus.present)


def node_count(facts: Facts, options: Options) -> int | None:
    """Nodes of the job; None where nothing says."""
    if options.nodes is not None:
        return options.nodes
    launch = facts.find(Launch)
    if launch is not None and launch.nodes is not None:
        return launch.nodes[1]
    scheduler = facts.find(Scheduler)
    return scheduler.nodes if scheduler is not None else None


def multi_node(facts: Facts, options: Options) -> bool | None:
    """Whether the job spans nodes; None where nothing says."""
    nodes = node_count(facts, options)
    return None if nodes is None else nodes > 1
