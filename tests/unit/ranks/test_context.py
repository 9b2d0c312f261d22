"""Who a process is, by what its launcher set."""

from __future__ import annotations

import pytest

from fixtures.launchers import ranks_of
from fsdp_doctor.facts.scheduler import read_scheduler
from fsdp_doctor.ranks.context import Alone, Context, context


def read(**env: str) -> Context | Alone:
    return context(read_scheduler(env))


def test_torchrun() -> None:
    found = read(
        RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", GROUP_RANK="1", MASTER_ADDR="node-a",
        MASTER_PORT="29411", TORCHELASTIC_RUN_ID="job-1",
    )  # fmt: skip
    assert found == Context(5, 8, "node-a", 29411, "MASTER_ADDR", 1, 4, (), "job-1")
    assert not found.leads


def test_bare_variables_and_the_default_port() -> None:
    found = read(RANK="0", WORLD_SIZE="2", MASTER_ADDR="10.0.0.1")
    assert isinstance(found, Context) and found.leads and found.port == 29500


def test_srun_without_master_addr() -> None:
    found = read(
        SLURM_PROCID="3", SLURM_NTASKS="4", SLURM_LOCALID="1", SLURM_STEP_ID="0", SLURM_JOB_ID="77",
        SLURM_STEP_NUM_TASKS="4", SLURM_STEP_NUM_NODES="2", SLURM_STEP_NODELIST="n[07-08]",
        SLURM_STEP_TASKS_PER_NODE="2(x2)", SLURM_NODEID="1",
    )  # fmt: skip
    assert isinstance(found, Context)
    assert (found.address, found.address_from) == ("n07", "the first host of the node list")
    assert found.node_list == ("n07", "n08")
    assert found.job_id == "77.0"


def test_mpirun_on_one_host() -> None:
    found = read(
        OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )  # fmt: skip
    assert isinstance(found, Context) and found.address == "127.0.0.1"


def test_mpirun_on_hosts_that_nobody_names() -> None:
    found = read(
        OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="1",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )  # fmt: skip
    assert found == Alone("where rank 0 is, is not known: MASTER_ADDR is not set", wanted=True)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "3"}, False),  # the batch script's shell
        ({"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "x"}, True),
        ({"RANK": "one", "WORLD_SIZE": "4", "MASTER_ADDR": "x"}, True),
        ({"RANK": "0", "WORLD_SIZE": "999999999", "MASTER_ADDR": "x"}, True),
    ],
)
def test_alone(env: dict[str, str], wanted: bool) -> None:
    found = read(**env)
    assert isinstance(found, Alone) and found.wanted is wanted, found


def test_ipv6_in_brackets() -> None:
    found = read(RANK="0", WORLD_SIZE="2", MASTER_ADDR="[fd00::1]")
    assert isinstance(found, Context) and found.address == "fd00::1"


# --------------------------------------------------------------------------------- as launchers really say it
@pytest.mark.parametrize(
    ("start", "world", "launcher"),
    [
        ("srun", 4, "slurm"),
        ("srun_in_batch", 4, "slurm"),
        ("mpirun", 4, "mpi"),
        ("mpirun_in_batch", 4, "mpi"),
        ("torchrun_in_srun", 2, "torchrun"),
    ],
)
def test_recorded_ranks_find_each_other(start: str, world: int, launcher: str) -> None:
    ranks = ranks_of(start)
    assert {read_scheduler(e).launcher for e in ranks} == {launcher}
    assert not any(read_scheduler(e).problems for e in ranks)
    found = [read(**e) for e in ranks]
    assert all(isinstance(c, Context) for c in found)
    assert [c.rank for c in found] == [c.local_rank for c in found] == list(range(world))  # type: ignore[union-attr]
    together = {(c.world_size, c.address, c.port, c.job_id) for c in found}  # type: ignore[union-attr]
    assert len(together) == 1 and together.pop()[0] == world


def test_the_shell_of_a_batch_script_is_no_rank() -> None:
    (shell,) = ranks_of("batch")
    assert read(**shell) == Alone("no launcher set a rank and a world size")


@pytest.mark.parametrize(
    ("start", "name"), [("srun_in_batch", "SLURM_STEP_ID"), ("mpirun_in_batch", "OMPI_MCA_ess_base_jobid")]
)
def test_two_starts_in_one_job_are_told_apart(start: str, name: str) -> None:
    one, *_ = ranks_of(start)
    other = one | {name: "7", name.replace("STEP_ID", "STEPID"): "7"}
    ids = {c.job_id for c in (read(**one), read(**other)) if isinstance(c, Context)}
    assert len(ids) == 2 and all(i and i.startswith(one["SLURM_JOB_ID"]) for i in ids)
