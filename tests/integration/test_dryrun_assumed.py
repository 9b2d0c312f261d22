"""What no value decides on shapes is assumed and listed; what fails by a subclass or an argument is named with its lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.many import Machine, replays
from fsdp_doctor.memory.replay import Replay, ReplayError

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

MODELS = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        if 64 % heads:
            raise ValueError("no multiple")
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        return self.linear(x)

class Net(nn.Module):
    def __init__(self, what=""):
        super().__init__()
        self.first, self.last, self.what = Layer(), nn.Linear(64, 64), what
    def forward(self, x, ids):
        x = self.first(x)
        some = (x.detach() * 9).long()
        if self.what == "unique":
            found, place = torch.unique(some, return_inverse=True)
            assert found.shape == (some.numel(),) and place.shape == some.shape
            x = x + found.float().mean()
        if self.what == "chosen":
            found, counts = torch.unique(x.detach()[:, :4].topk(2).indices, return_counts=True)
            assert found.shape == (4,) and counts.sum() == 2 * len(x)
        if self.what == "known":
            assert torch.unique(ids).tolist() == [0, 1, 2]
            assert torch.unique(ids, dim=0, return_counts=True)[1].tolist() == [2, 2, 4]
            assert torch.unique_consecutive(ids, return_counts=True)[1].tolist() == [2, 2, 4]
        if self.what == "rows":
            assert torch.unique(some, dim=0).shape == torch.unique_consecutive(some, dim=0).shape == some.shape
        if self.what == "bins":
            assert torch.bincount(some.flatten().abs(), minlength=10).shape == (10,)
            assert torch.bincount(some.flatten().abs(), x.flatten(), minlength=10).dtype == x.dtype
        if self.what == "repeats":
            assert x.repeat_interleave(some[:, 0].abs(), 0).shape == x.shape
            assert x.repeat_interleave(ids, 0).shape == (10, 64)
        if self.what == "close":
            assert torch.allclose(x, x * 1)
        return self.last(x).square().mean()

class Q(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))
class R(Q):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented
class S(Q):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.zeros(2)
class V(Q):
    def __init__(self, data):
        self.scale = float(data.abs().max())

def net(what=""):
    return Net(what)
def held(kind):
    made = Net()
    made.last.weight = nn.Parameter(globals()[kind](made.last.weight.detach()), requires_grad=False)
    return made
def orthogonal(how):
    made = Net()
    made.last = nn.utils.parametrizations.orthogonal(nn.Linear(64, 64), orthogonal_map=how)
    return made
def uneven():
    made = Net()
    made.first = Layer(heads=7)
    return made
def guards():
    made = Net()
    for p in made.parameters():
        assert (p.abs() < 100).all()
        if (p > 100).any():
            raise ValueError
    return made
def batch(device):
    return torch.randn(8, 64, device=device), torch.tensor([0, 0, 1, 1, 2, 2, 2, 2], device=device)
"""
ASSUMED: Mapping[str, tuple[str, dict[str, object], tuple[str, ...]]] = {
    "all differ": ("net", {"what": "unique"}, ("unique2: 512 different values of 512",)),
    "chosen experts": ("net", {"what": "chosen"}, ("unique2: 4 different values of 16",)),
    "values of the batch": ("net", {"what": "known"}, ()),
    "rows": ("net", {"what": "rows"}, ("unique_dim: 8 different values of 8",)),
    "bins": ("net", {"what": "bins"}, ("bincount: 512 values in 10 bins",)),
    "repeats": ("net", {"what": "repeats"}, ("repeat_interleave: 8 counts of 1",)),
    "a check of values": ("net", {"what": "close"}, ("allclose: True",)),
    "orthogonal": ("orthogonal", {"how": "matrix_exp"}, ("allclose: True",)),
    "householder": ("orthogonal", {"how": "householder"}, ("allclose: True",)),
    "cayley": ("orthogonal", {"how": "cayley"}, ("allclose: True",)),
    "guards of a function": ("guards", {}, (".item(): True", ".item(): False")),
}
REFUSED: Mapping[str, tuple[str, dict[str, object], str, str, str]] = {
    "a subclass that raises": (
        "held", {"kind": "Q"}, "unmodelled", "the tensor subclass Q has no form", "raise NotImplementedError",
    ),
    "one that does nothing": (
        "held", {"kind": "R"}, "unmodelled", "the tensor subclass R has no form", "made.last.weight =",
    ),
    "one that forgets what it is": (
        "held", {"kind": "S"}, "unmodelled", "the tensor subclass S has no form", "made.last.weight =",
    ),
    "one that reads its values": (
        "held", {"kind": "V"}, "unmodelled", "the tensor subclass V has no form", "self.scale = float",
    ),
    "an argument": ("uneven", {}, "model", "ValueError: no multiple, called at ", 'raise ValueError("no multiple")'),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Replay | ReplayError | None]:
    path = tmp_path_factory.mktemp("assumed") / "models.py"
    path.write_text(MODELS)
    asked = {name: (row[0], row[1]) for name, row in (*ASSUMED.items(), *REFUSED.items())}
    jobs = [Job(f"{path}:{model}", f"{path}:batch", 8, args) for model, args in asked.values()]
    return dict(zip(asked, replays(jobs, Machine(gpu={"sm": 90, "processors": 132})), strict=True))


@pytest.mark.parametrize("name", ASSUMED)
def test_sizes_that_values_decide(found: dict[str, Replay | ReplayError | None], name: str) -> None:
    done = found[name]
    assert isinstance(done, Replay), done
    listed = done.about["assumed"]
    assert isinstance(listed, list)
    said = [(row["place"], row["what"]) for row in listed]
    for words in ASSUMED[name][2]:
        assert any(words in what and "models.py" in place for place, what in said), said
    assert said or not ASSUMED[name][2]
    assert bool(said) == bool(ASSUMED[name][2])


@pytest.mark.parametrize("name", REFUSED)
def test_subclasses_and_arguments_are_named(found: dict[str, Replay | ReplayError | None], name: str) -> None:
    kind, words, line = REFUSED[name][2:]
    error = found[name]
    assert isinstance(error, ReplayError)
    assert error.kind == kind and words in error.text
    assert line in MODELS.splitlines()[int(error.place.rpartition(":")[2]) - 1]
    if "called at" in words:
        at = error.text.partition("called at ")[2].partition(":")
        assert MODELS.splitlines()[int(at[2]) - 1].strip() == "made.first = Layer(heads=7)"
