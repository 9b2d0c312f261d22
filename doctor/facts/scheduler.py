"""Who started this process, read from environment variables alone."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.facts.nodelist import node_names, task_counts
from fsdp_doctor.facts.parse import integer
from fsdp_doctor.facts.source import Source
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.scheduler import Scheduler

COUNT_LIMIT = 1 << 31
PORT_LIMIT = 1 << 16
NO_STEP = 0xFFFFFFF0
"""SLURM numbers the batch, interactive and extern steps from here: their shell is no rank."""
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MPI = (
    tuple(f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    tuple(f"MV2_COMM_WORLD_{n}" for n in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
)
PMI = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)
STEP_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
STEP_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
JOB_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST")
OLD_JOB_NODES = ("SLURM_NNODES", "SLURM_NODELIST")
MANAGERS = (
    ("slurm", ("SLURM_JOB_ID", "SLURM_JOBID")),
    ("lsf", ("LSB_JOBID",)),
    ("pbs", ("PBS_JOBID",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST", "PET_NNODES", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")),
)
STEP_IDS = {
    "slurm": ("SLURM_STEP_ID", "SLURM_STEPID"),
    "mpi": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID"),
}
JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID", "PBS_JOBID", "TORCHELASTIC_RUN_ID")


def scheduler(source: Source) -> Known[Scheduler] | Unknown:
    """The launcher and the resource manager of the rank's environment."""
    answer = source.env()
    return answer if isinstance(answer, Unknown) else Known(read_scheduler(answer.value), answer.source)


def read_scheduler(env: Mapping[str, str]) -> Scheduler:
    """Launcher, rank and sizes as the variables say; what contradicts itself is in `problems`."""
    read = _Reader(env)
    launcher, names = _launcher(read)
    manager = next((name for name, marks in MANAGERS if any(env.get(m) for m in marks)), None)
    rank, world, local, local_world = (read.count(n) for n in names)
    if launcher == "slurm":
        names, local_world = (*names[:3], "the number of tasks on this node"), _tasks_here(read)
    nodes, node_list = _nodes(read)
    if launcher == "torchrun" or (nodes is None and launcher != "none"):
        nodes = read.count("GROUP_WORLD_SIZE") or _quotient(world, local_world)
    _limit(read, names[0], rank, names[1], world)
    _limit(read, names[2], local, names[3], local_world)
    if world is not None and local_world is not None and local_world > world:
        read.complain(f"{names[3]} is {local_world} but {names[1]} is {world}")
    if launcher == "env":
        _compare_with_slurm(read, rank, world)
    if launcher == "none":
        _half_set(read)
    return Scheduler(
        launcher=launcher,
        resource_manager=manager,
        rank=rank,
        world_size=world,
        local_rank=local,
        local_world_size=local_world,
        node_rank=_node_rank(launcher, read),
        nodes=nodes,
        node_list=node_list,
        master_addr=_master(read),
        master_port=_port(read),
        job_id=_job_id(launcher, env),
        problems=tuple(read.problems),
    )


def _job_id(launcher: str, env: Mapping[str, str]) -> str | None:
    """What the ranks of one start have in common, and those of another start in the same job have not."""
    names = (JOB_IDS, STEP_IDS.get(launcher, ()))
    found = [env[name] for each in names if (name := next((n for n in each if env.get(n)), None))]
    return ".".join(found) or None


class _Reader:
    """Variables, and the complaints about those that do not parse."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.problems: list[str] = []

    def count(self, *names: str) -> int | None:
        """The first of the variables that is set, as a number that is not negative."""
        name = next((n for n in names if self.env.get(n)), None)
        if name is None:
            return None
        word = self.env[name].strip()
        if word.isascii() and word.isdigit() and len(word) < 11 and int(word) < COUNT_LIMIT:
            return int(word)
        self.complain(f"{name} is {word[:40]!r}, which is no whole number from 0 on")
        return None

    def complain(self, problem: str) -> None:
        """One problem in words, said once."""
        if problem not in self.problems:
            self.problems.append(problem)


def _launcher(read: _Reader) -> tuple[str, tuple[str, ...]]:
    """The launcher and its variables for rank, world size, local rank and local world size.

    torch reads RANK and WORLD_SIZE, whoever else started the process, so they go first. mpirun inside
    a SLURM job starts its daemons as SLURM tasks: its own variables go before SLURM's.
    """
    env = read.env
    if env.get("TORCHELASTIC_RUN_ID"):
        return "torchrun", TORCH
    if env.get("RANK") and env.get("WORLD_SIZE"):
        return "env", TORCH
    for names in MPI:
        if env.get(names[0]):
            return "mpi", names
    if _in_step(env):
        tasks = next((n for n in STEP_TASKS if env.get(n)), STEP_TASKS[1])
        return "slurm", ("SLURM_PROCID", tasks, "SLURM_LOCALID", "")
    for names in PMI:
        if env.get(names[0]) and env.get(names[1]) and (names is PMI[-1] or env.get(names[2])):
            return "mpi", names
    return "none", ("", "", "", "")


def _in_step(env: Mapping[str, str]) -> bool:
    """Whether srun started this process; the shell of a batch script has SLURM_PROCID=0 as well."""
    rank = env.get("SLURM_PROCID", "")
    if not rank or not any(env.get(n) for n in STEP_TASKS):
        return False
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")
    if step:
        number = integer(step)
        return step not in ("batch", "interactive", "extern") and (number is None or number < NO_STEP)
    return rank != "0" or bool(env.get("SLURM_STEP_NUM_TASKS"))


def _tasks_here(read: _Reader) -> int | None:
    """Tasks of srun on this node, from the list of all nodes."""
    name = next((n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if read.env.get(n)), None)
    if name is None:
        return read.count("SLURM_NTASKS_PER_NODE")
    counts, node = task_counts(read.env[name]), read.count("SLURM_NODEID")
    if counts is None:
        read.complain(f"{name} is {read.env[name][:40]!r}, which is no list of task counts")
        return None
    if len(set(counts)) == 1:
        return counts[0]
    return counts[node] if node is not None and node < len(counts) else None


def _nodes(read: _Reader) -> tuple[int | None, tuple[str, ...]]:
    """Number of nodes and their names, as the resource manager says."""
    env = read.env
    for count_name, list_name in (STEP_NODES, JOB_NODES, OLD_JOB_NODES):
        listed = env.get(list_name)
        if not listed:
            continue
        names = node_names(listed)
        count = read.count(count_name)
        if names is None:
            read.complain(f"{list_name} is {listed[:60]!r}, which is no list of nodes")
        elif count is not None and count != len(names):
            read.complain(f"{count_name} is {count} but {list_name} names {len(names)} nodes")
        return count or len(names or ()) or None, names or ()
    hosts = tuple(dict.fromkeys((env.get("LSB_HOSTS") or "").split())) or _volcano_hosts(env)
    if hosts:
        return len(hosts), hosts
    elastic = ":" in env.get("PET_NNODES", "")
    return read.count("SLURM_JOB_NUM_NODES", "SLURM_NNODES") or (
        None if elastic else read.count("PET_NNODES")
    ), ()


def _volcano_hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    """Hosts of all task groups of a Volcano job, the masters first."""
    groups = sorted(n for n in env if n.startswith("VC_") and n.endswith("_HOSTS"))
    groups.sort(key=lambda n: "MASTER" not in n)
    hosts = (h.strip() for n in groups for h in env[n].split(","))
    return tuple(dict.fromkeys(h for h in hosts if h))


def _node_rank(launcher: str, read: _Reader) -> int | None:
    if launcher == "torchrun":
        return read.count("GROUP_RANK", "NODE_RANK")
    if launcher == "slurm":
        return read.count("SLURM_NODEID")
    return read.count("GROUP_RANK", "NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")


def _master(read: _Reader) -> str | None:
    name = "MASTER_ADDR" if "MASTER_ADDR" in read.env else "PET_MASTER_ADDR"
    value = read.env.get(name)
    if value is None:
        return None
    colons = value.count(":")
    if not value.strip() or "/" in value or " " in value or colons == 1:
        read.complain(f"{name} is {value[:60]!r}, which is neither a host name nor an address")
    return value or None


def _port(read: _Reader) -> int | None:
    port = read.count("MASTER_PORT", "PET_MASTER_PORT")
    if port is not None and not 0 < port < PORT_LIMIT:
        read.complain(f"MASTER_PORT is {port}; ports run from 1 to 65535")
        return None
    return port


def _quotient(world: int | None, local_world: int | None) -> int | None:
    return world // local_world if world and local_world and world % local_world == 0 else None


def _limit(read: _Reader, name: str, value: int | None, size_name: str, size: int | None) -> None:
    if value is not None and size is not None and value >= size:
        read.complain(f"{name} is {value} but {size_name} is {size}: it runs from 0 to {size - 1}")


def _compare_with_slurm(read: _Reader, rank: int | None, world: int | None) -> None:
    """A script that sets RANK once for all tasks of srun gives every process the same one."""
    if not _in_step(read.env):
        return
    tasks, task = read.count(*STEP_TASKS), read.count("SLURM_PROCID")
    if tasks is not None and tasks > 1 and world == tasks and rank is not None and rank != task:
        read.complain(f"RANK is {rank} but SLURM_PROCID is {task}, with {tasks} tasks and WORLD_SIZE {world}")


def _half_set(read: _Reader) -> None:
    for name, other in (TORCH[:2], TORCH[1::-1]):
        if read.env.get(name):
            read.count(name)
            read.complain(f"{name} is set but {other} is not")
