"""Which processes are the ranks of a job."""

from __future__ import annotations

import os

import pytest

from fsdp_doctor.diagnosis.live.find import (
    NoRanks,
    Seen,
    as_process,
    job_name,
    jobs,
    matches,
    processes,
    ranks_below,
)


def process(pid: int, parent: int, *command: str, state: str = "S", **environment: str) -> Seen:
    return Seen(pid, parent, environment, command or ("python", "train.py"), state)


def table(*seen: Seen) -> dict[int, Seen]:
    return {s.pid: s for s in seen}


def rank(pid: int, parent: int, number: int, **more: str) -> Seen:
    own = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "7"}
    return process(pid, parent, **{**own, **more})


TORCHRUN = process(10, 1, "/usr/bin/python", "/usr/bin/torchrun", "train.py")
JOB = table(TORCHRUN, rank(12, 10, 1), rank(11, 10, 0))


def test_ranks_below_a_launcher_in_their_order() -> None:
    assert [s.pid for s in ranks_below(JOB, 10)] == [11, 12]


def test_loader_workers_inherit_a_rank_and_have_none() -> None:
    spawned = rank(20, 11, 0)
    nested = rank(21, 20, 0)
    found = ranks_below({**JOB, 20: spawned, 21: nested}, 10)
    assert [s.pid for s in found] == [11, 12]


def test_a_loader_worker_leads_to_its_rank() -> None:
    assert [s.pid for s in ranks_below({**JOB, 20: rank(20, 12, 1)}, 20)] == [12]


def test_srun_gives_its_rank_to_the_agent_too() -> None:
    agent = process(10, 9, "python", "-m", "torch.distributed.run", "train.py", SLURM_PROCID="0")
    shell = process(9, 1, "/bin/bash", "job.sh", SLURM_PROCID="0")
    inner = {"SLURM_PROCID": "0"}
    seen = table(shell, agent, rank(11, 10, 0, **inner), rank(12, 10, 1, **inner))
    assert [s.pid for s in ranks_below(seen, 9)] == [11, 12]


def test_the_doctor_in_between_is_no_rank() -> None:
    doctor = process(
        10, 1, "python", "-m", "fsdp_doctor", "run", "--", "python", "train.py", SLURM_PROCID="3"
    )
    seen = table(doctor, process(11, 10, SLURM_PROCID="3", SLURM_LOCALID="1", SLURM_NTASKS="8"))
    found = as_process(ranks_below(seen, 10)[0])
    assert (found.pid, found.rank, found.local_rank, found.world_size) == (11, 3, 1, 8)


def test_ranks_without_variables_are_the_topmost_programs() -> None:
    seen = table(process(10, 1, "/bin/sh", "x"), process(11, 10), process(12, 10), process(13, 12))
    assert [s.pid for s in ranks_below(seen, 10)] == [11, 12]


def test_zombies_and_shells_are_none() -> None:
    seen = table(TORCHRUN, rank(11, 10, 0), process(12, 10, state="Z"), process(13, 10, "/bin/sh", RANK="1"))
    assert [s.pid for s in ranks_below(seen, 10)] == [11]


def test_no_such_process() -> None:
    with pytest.raises(NoRanks, match="no process 99"):
        ranks_below(JOB, 99)


def test_no_program_below() -> None:
    with pytest.raises(NoRanks, match="no Python programs"):
        ranks_below(table(process(10, 1, "/bin/sh")), 10)


def test_jobs_are_told_apart_by_launcher_and_meeting_point() -> None:
    other = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node-a", "MASTER_PORT": "29501"}
    found = jobs({**JOB, 30: rank(30, 1, 0, **other), 31: rank(31, 1, 1, **other)})
    assert {n: [s.pid for s in m] for n, m in found.items()} == {"7": [11, 12], "node-a:29501": [30, 31]}
    name, members = next((n, m) for n, m in found.items() if "node" in n)
    assert matches(name, members, "29501") and matches(name, members, "node-a:29501")
    assert not matches(name, members, "7")


def test_a_job_without_a_name_is_called_by_its_parent() -> None:
    assert job_name(process(11, 10, RANK="0")) == "parent 10"


def test_odd_ranks_are_no_numbers() -> None:
    found = as_process(process(11, 10, RANK="none", LOCAL_RANK="-1", WORLD_SIZE="9" * 30))
    assert (found.rank, found.local_rank, found.world_size) == (None, None, None)


def test_this_process_is_seen() -> None:
    seen = processes()[os.getpid()]
    assert seen.parent == os.getppid() and "python" in seen.command[0]
