"""How a script ends by itself, and the GPU that it works on, are said with their lines."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_rehearse import finding, rehearse

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
if "absent" in sys.argv:
    sys.exit("no data in /data: set DATA")
if "hard" in sys.argv:
    os._exit(3)
dist.init_process_group("nccl")
torch.cuda.set_device(int("one" in sys.argv))
with torch.cuda.device(0):
    model = torch.nn.Linear(64, 64).cuda()
if "one" in sys.argv:
    model = model.to("cuda:1")
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if "enough" in sys.argv:
        quit("enough")
"""
WAYS = ("absent", "hard", "enough", "one", "plain")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ends")
    (folder / "train.py").write_text(SCRIPT)

    def one(way: str) -> tuple[int, dict[str, Any]]:
        return rehearse("python", "train.py", way, options=("--world-size", "8"), cwd=folder)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WAYS, pool.map(one, WAYS), strict=True))


def line_of(result: Mapping[str, Any]) -> str:
    assert Path(result["subject"]["file"]).name == "train.py"
    return SCRIPT.splitlines()[result["subject"]["line"] - 1].strip()


@pytest.mark.parametrize(
    ("way", "code", "words", "line"),
    [
        ("absent", 1, "exited with status 1 and says: no data in /data: set DATA", "sys.exit("),
        ("hard", 1, "exited with status 3", "os._exit(3)"),
        ("enough", 0, "after 1 of 2 optimizer steps and says: enough", "quit("),
    ],
)
def test_a_script_that_exits_says_why_and_where(
    found: Mapping[str, tuple[int, dict[str, Any]]], way: str, code: int, words: str, line: str
) -> None:
    status, report = found[way]
    said = finding(report)
    assert (status, words in said["found"]) == (code, True), said["found"]
    assert line_of(said).startswith(line)


def test_a_gpu_that_is_not_the_ranks_is_named(found: Mapping[str, tuple[int, dict[str, Any]]]) -> None:
    status, report = found["one"]
    lines = [line_of(r) for r in report["results"] if r["code"] == "MEM043"]
    assert (status, report["data"]["steps_done"]) == (0, 2)
    assert lines == ['torch.cuda.set_device(int("one" in sys.argv))', 'model = model.to("cuda:1")']
    assert all("cuda:1" in r["found"] for r in report["results"] if r["code"] == "MEM043")


def test_a_rank_on_its_own_gpu_is_left_alone(found: Mapping[str, tuple[int, dict[str, Any]]]) -> None:
    status, report = found["plain"]
    assert (status, finding(report, "MEM043")["status"]) == (0, "pass")
