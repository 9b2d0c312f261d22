from __future__ import annotations

import pytest

from fixtures import machines
from fixtures.memory import source_of
from fsdp_doctor.facts.nodelist import node_names, task_counts
from fsdp_doctor.facts.scheduler import read_scheduler, scheduler
from fsdp_doctor.subjects.fact import Unknown
from fsdp_doctor.subjects.scheduler import Scheduler
from tests.unit.facts.literal import known, source

SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "gpu[08-09]",
    "SLURM_NTASKS": "16",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
}


def test_a_rank_of_torchrun() -> None:
    found = known(scheduler(source_of(machines.two_nodes().ranks[3])))
    assert found == Scheduler(
        launcher="torchrun",
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        node_rank=1,
        nodes=2,
        master_addr="10.30.0.11",
        master_port=29500,
        job_id="job-17",
    )


def test_a_plain_shell() -> None:
    assert known(scheduler(source_of(machines.h100()))) == Scheduler("none")


def test_a_task_of_srun() -> None:
    assert read_scheduler(SLURM) == Scheduler(
        launcher="slurm",
        resource_manager="slurm",
        rank=11,
        world_size=16,
        local_rank=3,
        local_world_size=8,
        node_rank=1,
        nodes=2,
        node_list=("gpu08", "gpu09"),
        job_id="77.0",
    )


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_STEP_ID": "batch"}])
def test_the_shell_of_a_batch_script_is_no_rank(step: dict[str, str]) -> None:
    env = {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"} | step
    assert read_scheduler(env) == Scheduler(
        "none",
        resource_manager="slurm",
        nodes=2,
        node_list=("gpu08", "gpu09"),
        job_id="77",
    )


def test_torchrun_inside_a_job() -> None:
    env = SLURM | {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
    env |= {"TORCHELASTIC_RUN_ID": "none", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
    env |= {"LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
    found = read_scheduler(env)
    assert (found.launcher, found.resource_manager, found.rank, found.world_size) == (
        "torchrun",
        "slurm",
        9,
        16,
    )
    assert (found.nodes, found.node_list, found.job_id, found.problems) == (2, ("gpu08", "gpu09"), "77", ())


def test_uneven_nodes() -> None:
    env = SLURM | {"SLURM_TASKS_PER_NODE": "12,4", "SLURM_NODEID": "1"}
    assert read_scheduler(env).local_world_size == 4


@pytest.mark.parametrize(
    ("env", "ranks"),
    [
        (
            {
                f"OMPI_COMM_WORLD_{n}": v
                for n, v in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "5812", strict=True)
            },
            (5, 8, 1, 2),
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 4, 1, 2)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "1"}, (3, 4, 0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, None, None)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 2, None, None)),
    ],
)
def test_mpi(env: dict[str, str], ranks: tuple[int | None, ...]) -> None:
    found = read_scheduler(env)
    assert found.launcher == "mpi"
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == ranks
    assert found.problems == ()


def test_open_mpi_inside_slurm_goes_before_its_daemons() -> None:
    env = SLURM | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    found = read_scheduler(env)
    assert (found.launcher, found.resource_manager, found.rank, found.world_size) == ("mpi", "slurm", 2, 4)


def test_a_task_of_srun_with_pmi_variables() -> None:
    assert read_scheduler(SLURM | {"PMI_RANK": "11", "PMI_SIZE": "16"}).launcher == "slurm"


def test_pods() -> None:
    env = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "PET_NNODES": "4",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29400",
    }
    assert read_scheduler(env) == Scheduler(
        "none",
        resource_manager="kubernetes",
        node_rank=2,
        nodes=4,
        master_addr="job-node-0-0.job",
        master_port=29400,
    )
    assert read_scheduler(env | {"PET_NNODES": "1:4"}).nodes is None
    by_operator = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m"}
    found = read_scheduler(by_operator)
    assert (found.launcher, found.resource_manager, found.rank, found.problems) == (
        "env",
        "kubernetes",
        1,
        (),
    )


def test_a_volcano_job() -> None:
    env = {"VC_WORKER_HOSTS": "w-0.x,w-1.x", "VC_MASTER_HOSTS": "m-0.x", "VC_TASK_INDEX": "1"}
    found = read_scheduler(env)
    assert (found.resource_manager, found.nodes, found.node_list) == (
        "kubernetes",
        3,
        ("m-0.x", "w-0.x", "w-1.x"),
    )


def test_other_managers() -> None:
    lsf = read_scheduler({"LSB_JOBID": "5", "LSB_HOSTS": "a a b b"})
    assert (lsf.resource_manager, lsf.nodes, lsf.node_list, lsf.job_id) == ("lsf", 2, ("a", "b"), "5")
    assert read_scheduler({"PBS_JOBID": "9.server"}).resource_manager == "pbs"


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, "RANK is '٣'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 but WORLD_SIZE is 2: it runs from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, "LOCAL_RANK is 8"),
        (
            {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"},
            "LOCAL_WORLD_SIZE is 8 but WORLD_SIZE is 4",
        ),
        ({"RANK": "0"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE is set but RANK is not"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({"MASTER_PORT": "tcp://10.0.0.1:80"}, "MASTER_PORT is 'tcp://10.0.0.1:80'"),
        ({"MASTER_ADDR": "node0:29500"}, "MASTER_ADDR is 'node0:29500'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is ''"),
        (SLURM | {"SLURM_JOB_NODELIST": "gpu[08"}, "SLURM_JOB_NODELIST is 'gpu[08'"),
        (SLURM | {"SLURM_JOB_NUM_NODES": "3"}, "SLURM_JOB_NUM_NODES is 3 but SLURM_JOB_NODELIST names 2"),
        (SLURM | {"SLURM_TASKS_PER_NODE": "8(y2)"}, "SLURM_TASKS_PER_NODE is '8(y2)'"),
        (SLURM | {"RANK": "0", "WORLD_SIZE": "16"}, "RANK is 0 but SLURM_PROCID is 11"),
    ],
)
def test_problems(env: dict[str, str], problem: str) -> None:
    (said,) = read_scheduler(env).problems
    assert said.startswith(problem)


@pytest.mark.parametrize("address", ["node0", "10.0.0.1", "fe80::1", "a.b.example"])
def test_addresses_without_a_problem(address: str) -> None:
    assert read_scheduler({"MASTER_ADDR": address}).problems == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ("login",)),
        ("node[01-03,7]", ("node01", "node02", "node03", "node7")),
        ("a[1-2]b[3,4],c", ("a1b3", "a1b4", "a2b3", "a2b4", "c")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("n[1-", None),
        ("n]1[", None),
        ("n[3-1]", None),
        ("n[a-b]", None),
        ("n[1-999999999]", None),
        ("n[0-999][0-999]", None),
        ("n" * 1000 + "[0-60000]", None),
        ("n[" + "0" * 1000 + "-60000]", None),
        ("", None),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...] | None) -> None:
    assert node_names(text) == names


@pytest.mark.parametrize(
    ("text", "counts"),
    [("8(x2),4", (8, 8, 4)), ("1", (1,)), ("", None), ("8(x999999)", None), ("a", None)],
)
def test_task_counts(text: str, counts: tuple[int, ...] | None) -> None:
    assert task_counts(text) == counts


def test_an_unknown_environment() -> None:
    assert isinstance(scheduler(source()), Unknown)
