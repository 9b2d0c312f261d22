"""Rank 0 without the others, on real tensors: DDP's reducer, futures of works, objects, optimizers, other GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "fixtures" / "scripts" / "ranks.py"
CHILD = """
import runpy, sys
from fsdp_doctor.memory.child.rehearsal import groups, libraries, notes, reducer, works
found = notes.Notes()
groups.Ranks(8, 8, found, on_host=False).install()
works.Works().install()
libraries.install(found, False)
reducer.install()
runpy.run_path(sys.argv[1], run_name="__main__")
"""
TWICE = "trained, once."
EXPECTED: dict[str, object] = {
    "gradients": True,
    "as views": "trained",
    "static": "trained",
    "unused": "trained",
    "hook": TWICE,
    "fp16 hook": TWICE,
    "PowerSGD": TWICE,
    "built-in hook": "trained",
    "future of all_reduce": [[3.0] * 3, [2.0] * 3],
    "future of all_gather": [[8, 3], [24]],
    "objects": [8, ["mine"], 56],
    "join": "trained",
    "ZeRO": 4,
    "ZeRO, overlapped": "trained",
    "sparse": True,
}


@pytest.fixture(scope="module")
def answers() -> dict[str, object]:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(SCRIPT)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found: dict[str, object] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    assert found, done.stderr
    return found


@pytest.mark.parametrize("asked", EXPECTED)
def test_what_needs_other_ranks_is_answered(answers: dict[str, object], asked: str) -> None:
    assert answers[asked] == EXPECTED[asked]


class Cuda(SimpleNamespace):
    """torch.cuda of a machine with one GPU."""

    def __init__(self) -> None:
        super().__init__(memory=SimpleNamespace())
        self.used: list[object] = []

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: object = None) -> str:
        assert device in (None, 0), "there is one"
        return "one GPU"

    def memory_allocated(self, device: object = None) -> int:
        assert device in (None, 0)
        return 512

    def can_device_access_peer(self, device: int, peer: int) -> bool:
        raise AssertionError("there is one")

    def set_device(self, device: object) -> None:
        self.used.append(device)


@pytest.fixture
def node() -> Any:
    torch = pytest.importorskip("torch")
    from fsdp_doctor.memory.child.rehearsal.node import Node
    from fsdp_doctor.memory.child.rehearsal.notes import Notes

    notes, cuda = Notes(), Cuda()
    Node(notes, 1, 8).install(cuda)
    return SimpleNamespace(notes=notes, cuda=cuda, torch=torch)


def test_the_gpus_of_other_ranks_are_counted_and_looked_at(node: Any) -> None:
    cuda = node.cuda
    assert cuda.device_count() == 8
    assert {cuda.get_device_name(i) for i in range(8)} == {cuda.get_device_name()} == {"one GPU"}
    assert cuda.get_device_name(node.torch.device("cuda", 3)) == cuda.get_device_name("cuda:7")
    assert [cuda.memory_allocated(i) for i in (0, 5)] == [512, 0]
    assert cuda.can_device_access_peer(0, 3)
    said = [n["what"] for n in node.notes.listed("handled")]
    assert any("device_count" in s and "8 GPUs" in s for s in said)


def test_work_on_another_ranks_gpu_is_refused_and_on_the_own_one_is_not(node: Any) -> None:
    from fsdp_doctor.memory.child.rehearsal.notes import Refusal

    node.cuda.set_device(0)
    assert node.cuda.used == [0]
    with pytest.raises(Refusal) as caught:
        node.cuda.set_device(node.torch.device("cuda", 3))
    assert "1 of the 8 GPUs" in caught.value.text and caught.value.place.startswith(__file__)
    with pytest.raises(AssertionError):
        node.cuda.get_device_name(8)  # as in the job, there is no ninth


def test_torch_itself_sees_the_gpus_that_are_there(node: Any) -> None:
    from fsdp_doctor.memory.child.rehearsal.notes import TORCH

    asked: dict[str, Any] = {"cuda": node.cuda}
    exec(compile("found = cuda.device_count()", TORCH + "random.py", "exec"), asked)
    assert asked["found"] == 1
