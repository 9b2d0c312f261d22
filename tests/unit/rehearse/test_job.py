"""From a launch command to what is rehearsed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_doctor.facts.launch import parse_launch
from fsdp_doctor.memory.rehearsal.job import RehearsalError, Rehearse, from_launch


def job(tmp_path: Path, *words: str, world: int | None = None) -> Rehearse:
    (tmp_path / "train.py").write_text("")
    return from_launch(parse_launch(words, tmp_path, {"HOME": str(tmp_path)}), world, 2, "auto")


@pytest.mark.parametrize(
    ("words", "world", "local"),
    [
        ("torchrun --nproc_per_node 8 train.py", 8, 8),
        ("torchrun --nnodes=4 --nproc-per-node=4 train.py", 16, 4),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", 2, 2),
        ("accelerate launch --num_processes 16 --num_machines 2 --main_process_ip a train.py", 16, 8),
    ],
)
def test_the_command_says_how_many_ranks_there_are(
    tmp_path: Path, words: str, world: int, local: int
) -> None:
    found = job(tmp_path, *words.split())
    assert (found.world_size, found.local_world_size) == (world, local)


@pytest.mark.parametrize(
    ("words", "asked", "local"),
    [
        ("python train.py", 64, 8),
        ("python train.py", 12, 6),
        ("python train.py", 4, 4),
        ("torchrun --nproc_per_node 8 train.py", 1024, 8),
        ("torchrun --nproc_per_node 8 train.py", 2, 2),
        ("torchrun --nproc_per_node gpu train.py", 32, 8),
    ],
)
def test_a_world_size_that_is_asked_for_wins(tmp_path: Path, words: str, asked: int, local: int) -> None:
    found = job(tmp_path, *words.split(), world=asked)
    assert (found.world_size, found.local_world_size) == (asked, local)


def test_arguments_environment_and_modules(tmp_path: Path) -> None:
    found = job(
        tmp_path, *["LR=3", "torchrun", "--nproc_per_node", "2", "train.py", "--steps", "9", "--", "x"]
    )
    assert found.script == "train.py" and found.arguments == ("--steps", "9", "--", "x")
    assert found.environment == {"LR": "3"} and found.accelerate is None
    found = job(tmp_path, *["torchrun", "--nproc_per_node", "2", "-m", "pkg.train", "--steps", "9"])
    assert (found.script, found.module, found.name) == (None, "pkg.train", "pkg.train")


@pytest.mark.parametrize(
    "front",
    [
        "accelerate launch",
        "accelerate-launch",
        "python -m accelerate.commands.launch",
        "srun accelerate launch",
    ],
)
def test_accelerate_gets_its_own_words(tmp_path: Path, front: str) -> None:
    found = job(tmp_path, *f"{front} --num_processes 4 --use_fsdp train.py a b".split())
    assert found.accelerate == ("--num_processes", "4", "--use_fsdp", "train.py", "a", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("python train.py", "--world-size N is needed"),
        ("torchrun --nproc_per_node gpu train.py", "gpu processes is not a number"),
        ("torchrun --nproc_per_node 2 gone.py", "gone.py: no such file"),
        ("deepspeed --num_gpus 2 train.py", "not by FSDP"),
        ("torchrun --nproc_per_node 2", "names no Python script"),
    ],
)
def test_what_cannot_be_rehearsed_is_said_in_a_line(tmp_path: Path, words: str, said: str) -> None:
    with pytest.raises(RehearsalError, match=said):
        job(tmp_path, *words.split())
