"""Options whose bytes can be reckoned, beside those of `test_dryrun_configurations`: one launch for all of them."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EventList | str]:
    folder = tmp_path_factory.mktemp("reckoned")
    (folder / "moving.py").write_text(MOVING)
    moving = Job(f"{folder}/moving.py:net", f"{folder}/moving.py:batch", 8)
    found = replayed([*JOBS.values(), moving], folder, 110)
    return dict(zip([*JOBS, "moving"], found, strict=True))


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
