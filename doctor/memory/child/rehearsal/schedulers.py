"""The variables by which srun and mpirun tell a task who it is, for the first of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JOB = "1000000"
"""The number of a job that no scheduler gave one."""
SET = {
    "SLURM_": "srun", "SLURMD_": "srun", "OMPI_": "mpirun", "PMI_": "mpirun", "PMIX_": "mpirun",
    "MV2_": "mpirun", "PBS_": "qsub", "LSB_": "bsub", "FLUX_": "flux run",
}  # fmt: skip
"""Who sets a variable, by how its name begins."""


def variables(job: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """What the scheduler that starts the job would set; what `known` says of the allocation stays."""
    scheduler = job.get("scheduler")
    if scheduler == "mpirun":
        return _open_mpi(int(job["tasks"]), int(job["tasks_per_node"]))
    if scheduler != "srun":
        return {}
    tasks, per_node = int(job["tasks"]), int(job["tasks_per_node"])
    nodes = max(1, tasks // per_node)
    hosts = f"rehearsal-[0-{nodes - 1}]" if nodes > 1 else "rehearsal-0"
    spread = f"{per_node}(x{nodes})" if nodes > 1 else str(per_node)
    step = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_TASKS_PER_NODE": spread,
        "SLURM_STEP_TASKS_PER_NODE": spread,
    }
    ours = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOBID": JOB,
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_NAME": "rehearsal",
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURM_STEP_NODELIST": hosts,
        "SLURMD_NODENAME": "rehearsal-0",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_GPUS_ON_NODE": str(job["local_world_size"]),
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_CPUS_ON_NODE": str(8 * per_node),
    }
    return step | {name: value for name, value in ours.items() if name not in known}


def _open_mpi(tasks: int, per_node: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_NODE_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": str(tasks),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
        "OMPI_UNIVERSE_SIZE": str(tasks),
        "PMIX_RANK": "0",
        "PMI_RANK": "0",
        "PMI_SIZE": str(tasks),
    }


def setter(error: BaseException) -> str:
    """Who would set the variable that a script did not find; "" where no scheduler does."""
    name = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    return next((who for begin, who in SET.items() if name.startswith(begin)), "")
