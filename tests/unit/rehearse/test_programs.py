"""Which programs write, start a job, or are to blame; and the variables of schedulers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from fsdp_doctor.memory.child.rehearsal import libraries, programs, schedulers
from fsdp_doctor.memory.child.rehearsal.notes import Notes, Refusal


@pytest.mark.parametrize(
    ("words", "shell", "writes"),
    [
        (["git", "rev-parse", "HEAD"], False, False),
        (["/usr/bin/nvidia-smi", "-L"], False, False),
        ("git describe && hostname", True, False),
        ("echo done > ckpt/latest", True, True),
        (["bash", "download.sh"], False, True),
        (["bash", "-c", "uname -a"], False, False),
        (["rm", "-rf", "ckpt"], False, True),
    ],
)
def test_programs_that_may_write(words: Any, shell: bool, writes: bool) -> None:
    assert programs.writing(words, shell=shell) is writes


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["torchrun", "--nproc-per-node", "8", "train.py"], "torchrun"),
        (["python3", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["bash", "-c", "cd x; srun -N 2 python train.py"], "srun"),
        (["accelerate", "env"], ""),
        (["srun", "--version"], ""),
        (["python", "prepare.py"], ""),
    ],
)
def test_launchers(words: list[str], starts: str) -> None:
    assert programs.launcher(words, shell=False) == starts


def test_without_the_kernels_word_only_readers_run(tmp_path: Path) -> None:
    def heard(words: list[str]) -> None:
        overlay: Any = SimpleNamespace()
        notes: Any = SimpleNamespace()
        programs.Programs(notes, overlay, confined=False)._heard(
            "subprocess.Popen", (words[0], words, None, None)
        )

    heard(["git", "status"])
    with pytest.raises(Refusal) as refused:
        heard(["bash", "download.sh"])
    assert "`bash download.sh` is not run" in refused.value.text


def test_a_reader_that_fails_does_not_excuse_another_error() -> None:
    overlay: Any = SimpleNamespace()
    started = programs.Programs(SimpleNamespace(), overlay, confined=True)  # type: ignore[arg-type]
    started.started = [programs.Started("git status", "train.py:3", False, status=128)]
    assert started.blamed(ValueError()) is None and started.blamed(FileNotFoundError()) is None
    failed = started.blamed(subprocess.CalledProcessError(9, ["nvidia-smi"]))
    assert failed == ("`nvidia-smi` ended with status 9", "")
    missing = FileNotFoundError()
    missing._doctor_program = programs.Started("scontrol show", "train.py:9", False, status=127)  # type: ignore[attr-defined]
    assert started.blamed(missing) == ("scontrol: no such program on this machine", "train.py:9")
    started.started.append(programs.Started("bash get.sh", "train.py:4", True, status=1))
    blamed = started.blamed(ValueError())
    assert blamed is not None and "`bash get.sh` ended with status 1 before, at train.py:4" in blamed[0]


def test_a_launcher_under_srun_is_one_task_of_its_node() -> None:
    job = {"scheduler": "srun", "tasks": 2, "tasks_per_node": 1, "local_world_size": 8}
    told = schedulers.variables(job, {"SLURM_JOB_ID": "77"})
    assert (told["SLURM_NTASKS"], told["SLURM_NNODES"], told["SLURM_GPUS_ON_NODE"]) == ("2", "2", "8")
    assert "SLURM_JOB_ID" not in told and schedulers.variables({"scheduler": ""}, {}) == {}
    assert schedulers.setter(KeyError("SLURM_PROCID")) == "srun" and schedulers.setter(KeyError("x")) == ""


def test_ranks_of_a_notebook_are_one_in_this_process() -> None:
    class Launch:
        def __init__(self, config: object, entrypoint: object) -> None:
            self._config, self._entrypoint = config, entrypoint

    notes, ranks = Notes(), SimpleNamespace(nproc_per_node=8)
    libraries._launched_here(SimpleNamespace(elastic_launch=Launch), notes)
    launched: Any = Launch(ranks, lambda steps: steps + 1)
    assert launched(4) == {0: 5}
    assert "8 ranks" in str(notes.listed("handled")[0]["what"])
    program: Any = Launch(ranks, "train.py")
    with pytest.raises(Refusal):
        program()
