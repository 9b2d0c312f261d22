"""Variables that say who a process is, and how many threads it may start."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.vars._values import about, leading_number, says
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import COMMAND, Settings, settings
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Scheduler

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ELASTIC = ("torchrun", "accelerate", "deepspeed")
PORT = "MASTER_PORT"


@check("VAR019", Row.START, needs=(Environment, Scheduler), uses=(Gpus, Launch), tags=("vars", "launch"))
def ranks_contradict(facts: Facts, options: Options) -> Iterator[Finding]:
    """RANK, WORLD_SIZE and their like contradict each other

    What: the variables of the launcher do not parse, do not fit together (RANK not below WORLD_SIZE,
        WORLD_SIZE no multiple of LOCAL_WORLD_SIZE, two nodes' counts), lack MASTER_ADDR, or LOCAL_RANK
        has no GPU.
    Why: init_process_group raises, or waits for ranks that do not exist until its timeout; a LOCAL_RANK
        without a GPU ends with "invalid device ordinal".
    Fix: let torchrun or srun set these variables; if a script derives them, derive all of them from one
        source.
    Sources: PyTorch documentation of torchrun (environment variables) and of init_process_group.
    """
    scheduler, variables = facts[Scheduler], settings(facts)
    if facts.find(Launch) is not None:
        yield ok("the launch command sets the ranks")
        return
    bad = False
    for problem in scheduler.problems:
        if problem.startswith(PORT):
            continue
        bad = True
        yield fail(
            problem,
            "variables of one launcher that fit together",
            subject=Subject(variable=problem.split(" ", 1)[0]),
            fix=Fix("Let torchrun or srun set the ranks, or correct the script that does"),
        )
    world, local = scheduler.world_size, scheduler.local_world_size
    if world and local and world % local and not bad:
        bad = True
        yield fail(
            f"WORLD_SIZE {world} is no multiple of LOCAL_WORLD_SIZE {local}",
            "the same number of ranks on every node",
            subject=Subject(variable="WORLD_SIZE"),
            fix=Fix("Start the same number of ranks on every node"),
        )
    if _env_ranks(variables, scheduler) and not variables.items.get("MASTER_ADDR"):
        bad = True
        yield fail(
            f"RANK {scheduler.rank} of {world} is set, and MASTER_ADDR is not",
            "MASTER_ADDR and MASTER_PORT beside RANK and WORLD_SIZE",
            subject=Subject(variable="MASTER_ADDR"),
            fix=Fix("Start the script with torchrun, or set MASTER_ADDR and MASTER_PORT"),
        )
    for finding in _device(facts, scheduler):
        bad = True
        yield finding
    if not bad:
        where = "no rank variable is set" if scheduler.rank is None else f"rank {scheduler.rank} of {world}"
        yield ok(f"{where} ({scheduler.launcher})")


def _env_ranks(variables: Settings, scheduler: Scheduler) -> bool:
    names = variables.items
    return (
        scheduler.launcher in ("env", "torchrun")
        and (scheduler.world_size or 0) > 1
        and "RANK" in names
        and "WORLD_SIZE" in names
        and "PET_MASTER_ADDR" not in names
    )


def _device(facts: Facts, scheduler: Scheduler) -> Iterator[Finding]:
    gpus = facts.find(Gpus)
    local = scheduler.local_rank
    if gpus is None or local is None:
        return
    count = job.visible_gpus(facts)
    if local < count or count == 0:
        return
    subject = Subject(rank=scheduler.rank, variable="LOCAL_RANK")
    if count == 1:
        yield info(
            f"LOCAL_RANK is {local} and this process sees one GPU: it is device 0 here, not device {local}",
            subject=subject,
        )
        return
    yield fail(
        f"LOCAL_RANK is {local}, and this process sees {count} GPUs",
        f"at most {count} ranks on this node",
        subject=subject,
        fix=Fix(f"Start at most {count} ranks per node (--nproc-per-node={count})"),
    )


@check("VAR020", Row.START, needs=(Environment, Launch), uses=(Scheduler,), tags=("vars", "launch"))
def ranks_are_left_over(facts: Facts, options: Options) -> Iterator[Finding]:
    """Rank variables of an earlier job are left in the shell

    What: RANK, WORLD_SIZE or LOCAL_RANK are set in the shell in front of a launch command that does not come
        from them. torchrun and accelerate overwrite them; a plain python takes them as they are.
    Why: a single process that believes to be rank 0 of 8 waits for seven others until the timeout.
    Fix: unset them before the start, or start with torchrun.
    Sources: PyTorch documentation of init_process_group (env://) and of torchrun.
    """
    launch, variables, scheduler = facts[Launch], settings(facts), facts.find(Scheduler)
    left = [s for n in RANKS if (s := variables.get(n)) is not None and s.source != COMMAND]
    world = variables.get("WORLD_SIZE")
    many = world is not None and world.source != COMMAND and (world.number or 0) > 1
    managed = scheduler is not None and (
        scheduler.resource_manager is not None or scheduler.launcher in ("slurm", "mpi")
    )
    names = ", ".join(f"{s.name}={s.value}" for s in left)
    if not left or managed:
        yield ok("no rank variable is left in the shell" if not left else f"{names}, of the resource manager")
    elif launch.launcher in ELASTIC:
        yield info(f"{names} in the shell: {launch.launcher} overwrites them for its ranks")
    elif launch.launcher == "python" and many:
        yield warn(
            f"{names} in the shell, and the command starts one process: it would wait for the other ranks",
            "no rank variables, or a launcher that starts all ranks",
            subject=Subject(variable="WORLD_SIZE"),
            fix=Fix("Unset them", f"unset {' '.join(s.name for s in left)}"),
        )
    else:
        yield info(f"{names} in the shell")


@check("VAR021", Row.SLOW, needs=(Environment, Host), uses=(*job.USES,), tags=("vars", "cpu"))
def threads_do_not_fit(facts: Facts, options: Options) -> Iterator[Finding]:
    """OMP_NUM_THREADS does not fit the ranks and the processors of this node

    What: OMP_NUM_THREADS (or MKL_NUM_THREADS) times the ranks of this node is more than the processors; or it
        is unset where each rank takes a thread per processor; or it is no positive number.
    Why: oversubscribed ranks take the processors from each other's data loaders and from NCCL's proxy
        threads: collectives jitter and steps vary. With one thread (torchrun's default) CPU work such as
        CPU offload and checkpoint copies runs on one core per rank.
    Fix: set it to the processors divided by the ranks, or a little less.
    Sources: PyTorch documentation of torchrun (OMP_NUM_THREADS) and performance tuning guide.
    """
    host, variables = facts[Host], settings(facts)
    processors = host.cpus_allowed or host.cpus_online
    if host.cgroup.cpu_quota is not None and host.cgroup.cpu_quota > 0:
        processors = min(processors or 1 << 20, max(int(host.cgroup.cpu_quota), 1))
    ranks = job.local_ranks(facts, options)
    share = max((processors or 0) // max(ranks, 1), 1)
    bad = False
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        setting = variables.get(name)
        if setting is None or not setting.value.strip():
            continue
        threads = leading_number(setting.value.split(",")[0])
        fix = Fix(f"Set {name}={share}", f"export {name}={share}")
        if threads is None or threads < 1:
            bad = True
            yield warn(f"{says(setting)}", "a positive number", subject=about(setting), fix=fix)
        elif processors and threads > 1 and threads * ranks > processors:
            bad = True
            yield warn(
                f"{says(setting)} for {ranks} ranks is {threads * ranks} threads on {processors} processors",
                f"at most {share}",
                subject=about(setting),
                fix=fix,
            )
        elif name == "OMP_NUM_THREADS" and threads == 1 and share > 1 and ranks > 1:
            bad = True
            yield info(
                f"{says(setting)}: CPU work of each rank uses 1 of its {share} processors",
                subject=about(setting),
                fix=fix,
            )
    if bad or variables.get("OMP_NUM_THREADS") is not None or ranks < 2 or not processors:
        if not bad:
            yield ok(f"{ranks} ranks on {processors} processors")
        return
    launch, scheduler = facts.find(Launch), facts.find(Scheduler)
    launcher = (
        launch.launcher if launch is not None else scheduler.launcher if scheduler is not None else "none"
    )
    fix = Fix(f"Set OMP_NUM_THREADS={share}", f"export OMP_NUM_THREADS={share}")
    if launcher in ("torchrun", "accelerate") and share == 1:
        yield ok(f"{launcher} sets OMP_NUM_THREADS=1: {ranks} ranks on {processors} processors")
    elif launcher in ("torchrun", "accelerate"):
        yield info(
            f"OMP_NUM_THREADS is not set: {launcher} sets 1 for {ranks} ranks on {processors} processors",
            fix=fix,
        )
    elif launcher in ("srun", "mpirun", "slurm", "mpi", "env"):
        yield warn(
            f"OMP_NUM_THREADS is not set: each of {ranks} ranks starts up to {processors} threads",
            f"at most {share} per rank",
            subject=Subject(variable="OMP_NUM_THREADS"),
            fix=fix,
        )
    else:
        yield ok(f"{ranks} GPUs on {processors} processors; torchrun sets OMP_NUM_THREADS=1")
