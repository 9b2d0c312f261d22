"""Who a process is, by what its launcher set."""

from __future__ import annotations

import pytest

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
    assert found.job_id == "77"


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
