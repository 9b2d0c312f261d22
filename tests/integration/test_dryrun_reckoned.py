"""Options whose bytes can be reckoned, beside those of `test_dryrun_configurations`: one launch for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_doctor.memory.answers import forecast
from fsdp_doctor.memory.events import EventList
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.memory.simulate import simulate
from tests.support.replays import replayed

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

MODELS = Path(__file__).parents[2] / "fixtures" / "memory_truth" / "reckoned" / "models.py"
MATRIX, LAYERS, ROWS, RANK = 2048 * 2048 * 4, 4, 8192, 128
SAME = {"batch": f"{MODELS}:batch", "world_size": 8, "batch_args": {"rows": ROWS}}
JOBS = {
    "ddp": Job(f"{MODELS}:adapted", api="ddp", **SAME),  # type: ignore[arg-type]
    "ddp checkpointed": Job(f"{MODELS}:adapted", api="ddp", checkpoint=("Adapted",), **SAME),  # type: ignore[arg-type]
    "adagrad": Job(f"{MODELS}:net", wrap=("Block",), optimizer="adagrad", **SAME),  # type: ignore[arg-type]
}


MOVING = """
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.to("cuda:0")).mean()
def net():
    return Net(64, 64)
def batch(device):
    return torch.zeros(2, 64, device=device)
"""
ROUTED = """
import torch
from torch.nn.functional import one_hot
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(64, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        mask = one_hot(self.gate(x).topk(2).indices, 4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():  # as transformers has it
            _, rows = torch.where(mask[e].squeeze(0))
            out.index_add_(0, rows, self.experts[int(e)](x[rows]))
        rows = torch.zeros(len(x), 4).scatter(1, self.gate(x).topk(2).indices, 1.0)[:, 0].nonzero()[:, 0]
        return (out + self.gate(x).mean()).mean() + self.experts[0](x[rows]).mean()
def net():
    return Net()
def batch(device):
    return torch.zeros(512, 64, device=device)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventList | str]:
    folder = tmp_path_factory.mktemp("reckoned")
    (folder / "moving.py").write_text(MOVING)
    moving = Job(f"{folder}/moving.py:net", f"{folder}/moving.py:batch", 8)
    (folder / "routed.py").write_text(ROUTED)
    routed = Job(f"{folder}/routed.py:net", f"{folder}/routed.py:batch", 8, imbalance=3.0)
    found = replayed([*JOBS.values(), moving, routed], folder, 110)
    result = json.loads((folder / str(len(JOBS) + 1) / "result.json").read_text())
    assumed = "\n".join(f"{a['what']} x {a['times']}" for a in result.get("assumed", []))
    return dict(zip([*JOBS, "moving", "assumed"], [*found[:-1], assumed], strict=True))


@pytest.fixture
def events(answers: dict[str, EventList | str]) -> dict[str, EventList]:
    told = {n: a for n, a in answers.items() if isinstance(a, EventList)}
    assert told.keys() == JOBS.keys(), answers
    return told


def test_a_forward_that_asks_for_a_gpu_is_told(answers: dict[str, EventList | str]) -> None:
    said = str(answers["moving"])
    assert "a tensor is put on cuda:0" in said and "leave the device to the doctor" in said


def test_ddp_computes_checkpointed_activations_again(events: dict[str, EventList]) -> None:
    kept, again = (
        [p.after for p in simulate(events[n]).phases if p.name == "forward"][-1]
        for n in ("ddp", "ddp checkpointed")
    )
    assert kept - again == LAYERS * ROWS * RANK * 4  # the low-rank part's result of each block


def test_a_state_that_is_made_with_the_optimizer_is_state(events: dict[str, EventList]) -> None:
    answer = forecast(Replay(events["adagrad"], {}), JOBS["adagrad"], None)
    parts = {p.name: p.bytes for p in answer.peak.parts}
    assert parts["optimizer state"] == (LAYERS + 2) * MATRIX // 8
    assert parts["batch"] == ROWS * 2048 * 4
    assert [m.after for m in answer.timeline if m.phase == "end of step"] == [answer.steady, answer.steady]


def test_each_expert_that_is_met_gets_its_share(answers: dict[str, EventList | str]) -> None:
    """512 tokens choose 2 of 4 experts: 256 each; the busiest gets 3 times that at most, which are all tokens."""
    said = str(answers["assumed"]).splitlines()
    rows = [w for w in said if w.startswith("nonzero: ") and not w.startswith("nonzero: 4 of 4 ")]
    assert rows == [
        "nonzero: 170 of 1024 elements x 6",
        "nonzero: 512 of 1024 elements x 2",
        "nonzero: 170 of 512 elements x 2",
    ]
    assert not any("item" in w for w in said)  # the experts' numbers are known
