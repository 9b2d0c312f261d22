"""A plan against what torch itself makes of the same model: sizes, padding, suggestions."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_doctor.engine.units import sizes
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.plan import unit_plan
from fsdp_doctor.memory.replay import START, Replay, ReplayError, replay
from fsdp_doctor.subjects.unit_plan import UnitPlan

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

MODELS = """
import torch
from torch import nn

class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())

class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(dim), Expert(dim)
        self.odd = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.mlp(self.norm(x)) * self.odd.sum()

class Net(nn.Module):
    def __init__(self, dim=20, layers=3, tied=False, order=(0, 1, 2), frozen=False, experts=0):
        super().__init__()
        self.embed = nn.Embedding(33, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(layers))
        if experts:
            for layer in self.layers:
                layer.experts = nn.ModuleList(Expert(dim) for _ in range(experts))
        self.head = nn.Linear(dim, 33, bias=False)
        self.order = order
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.layers[0].requires_grad_(False)
            self.embed.weight.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        for i in self.order:
            x = self.layers[i](x)
        return self.head(x).mean()

def net(**kw):
    return Net(**kw)

class Stage(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))

class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(Stage(8 * 2**i, 2) for i in range(4))

class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Parameter(torch.zeros(4, 4, device="cpu"))
        self.c = nn.Parameter(torch.zeros(4, 6).t())
        self.q = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.optimizer = torch.optim.SGD(self.a.parameters(), 0.1)

class Row(nn.Module):
    def __init__(self, layers, tied=False):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(33, 20), layers, nn.Linear(20, 33, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = layer(x)
        return self.head(x).mean()

class Attention(Block):
    pass

class Other(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(dim), nn.Linear(dim, dim)

class Tower(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Block(20) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Named(nn.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

class Table(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids)

def by_name():  # layers in a dictionary, as torchtitan has them
    return Row(nn.ModuleDict({str(i): Block(20) for i in range(4)}))

def hybrid():
    return Row(nn.ModuleList([Block(20), Block(20), Attention(20), Block(20)]))

def different():
    return Row(nn.ModuleList([Block(20), Attention(20), Other(20)]))

def one_layer_six_times():
    return Row(nn.ModuleList([Block(20)] * 6))

def towers():
    return Named(towers=nn.ModuleList(Tower(3) for _ in range(2)))

def named_towers():
    return Named(left=Tower(3), right=Tower(3))

def attributes():
    return Named(**{f"block{i}": Block(20) for i in range(4)})

def plain_layers():
    return Named(fc1=nn.Linear(64, 64), fc2=nn.Linear(64, 64), out=nn.Linear(64, 1))

def by_hook():
    model = by_name()
    optimizer = torch.optim.AdamW(model.parameters())
    model.embed.weight.register_hook(lambda grad: optimizer.step())
    return model

def tables():  # two of one class, of which one is tied to the head
    model = Named(a=Table(99, 20), b=Table(99, 20), layers=nn.ModuleList(Block(20) for _ in range(3)))
    model.head = nn.Linear(20, 99, bias=False)
    model.head.weight = model.b.weight
    return model

def swin():
    return Swin()

def layered():
    return Layered()

def mixed():
    return Mixed()

def big(layers=80):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.o = nn.Linear(8192, 8192, bias=False), nn.Linear(8192, 8192, bias=False)
            self.kv = nn.Linear(8192, 2048, bias=False)
            self.gate_up, self.down = nn.Linear(8192, 57344, bias=False), nn.Linear(28672, 8192, bias=False)
            self.n1, self.n2 = nn.RMSNorm(8192), nn.RMSNorm(8192)

    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(128256, 8192)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = nn.Linear(8192, 128256, bias=False)

    return Big()

def batch(device):
    return torch.zeros(2, 5, dtype=torch.long, device=device),
"""

TORCH = """
import json, sys
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
sys.path.insert(0, sys.argv[1])
import models
world = 8
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
mesh = init_device_mesh("cpu", (world,))
net = models.net()
for block in net.layers:
    fully_shard(block, mesh=mesh)
fully_shard(net, mesh=mesh)
told = {"fsdp2": []}
for module in [net, *net.layers]:
    group = module._get_fsdp_state()._fsdp_param_groups[0] if hasattr(
        module._get_fsdp_state(), "_fsdp_param_groups") else module._get_fsdp_state()._fsdp_param_group
    told["fsdp2"].append([
        sum(p._sharded_param_data.numel() for p in group.fsdp_params),
        sum(p.padded_sharded_param_size.numel() * world for p in group.fsdp_params)])
for orig in (True, False):
    net = FullyShardedDataParallel(
        models.net(), auto_wrap_policy=ModuleWrapPolicy({models.Block}), device_id=torch.device("cpu"),
        use_orig_params=orig, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
    units = [m for m in net.modules() if isinstance(m, FullyShardedDataParallel)]
    told[f"fsdp1 {orig}"] = [
        [u._handle.flat_param.numel(), u._handle.flat_param.numel() * world] for u in units]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


@pytest.fixture(scope="module")
def torch_says(models: Path) -> dict[str, list[list[int]]]:
    done = subprocess.run(
        [sys.executable, "-c", TORCH, str(models.parent)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
    said: dict[str, list[list[int]]] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.fixture(scope="module")
def child() -> ModuleType:
    """The module that runs in the torch child, loaded as the child loads it."""
    spec = importlib.util.spec_from_file_location("memory_child_start", START)
    assert spec is not None and spec.loader is not None
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    found: ModuleType = start.load("plan")
    return found


class Read:
    """Makes plans of the models in this process, without a forward."""

    def __init__(self, path: Path, child: ModuleType) -> None:
        spec = importlib.util.spec_from_file_location("planned_models", path)
        assert spec is not None and spec.loader is not None
        self.models = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.models)
        self.child = child

    def __call__(self, factory: str = "net", **more: object) -> UnitPlan:
        job = a_job("models.py", factory, **more)
        with torch.device("meta"):
            model = getattr(self.models, factory)(**job.model_args)
        return unit_plan(json.loads(json.dumps(self.child.plan(model, job.to_json()))), job, None)


@pytest.fixture(scope="module")
def read(models: Path, child: ModuleType) -> Read:
    return Read(models, child)


def a_job(path: object, factory: str = "net", **more: object) -> Job:
    given: dict[str, object] = {"world_size": 8, "wrap": ("Block",), "batch": f"{path}:batch", **more}
    return Job(f"{path}:{factory}", **given)  # type: ignore[arg-type]


def run(models: Path, factory: str = "net", **more: object) -> tuple[UnitPlan, Replay]:
    job = a_job(models, factory, **more)
    done = replay(job, sm=90, deadline=100)
    return unit_plan(done.about, job, None), done


def test_fsdp2_shards_as_torch_does(read: Read, torch_says: dict[str, list[list[int]]]) -> None:
    plan = read()
    assert [[s.shard // 4, s.padded] for s in sizes(plan)] == torch_says["fsdp2"]


@pytest.mark.parametrize("orig", [True, False])
def test_fsdp1_flattens_as_torch_does(read: Read, torch_says: dict[str, list[list[int]]], orig: bool) -> None:
    plan = read(api="fsdp1", use_orig_params=orig, param_dtype="bfloat16")
    assert [[s.shard // 4, s.padded] for s in sizes(plan)] == torch_says[f"fsdp1 {orig}"]


def test_shared_frozen_ignored_and_checkpointed(read: Read) -> None:
    args = {"tied": True, "frozen": True}
    plan = read(wrap=("Block", "Embedding"), model_args=args, ignored=("LayerNorm",), checkpoint=("Expert",))
    assert [u.name for u in plan.units] == ["", "embed", "layers.0", "layers.1", "layers.2"]
    shared = next(p for p in plan.parameters if p.other_names)
    assert (shared.name, shared.other_names) == ("embed.weight", ("head.weight",))
    assert (shared.unit, shared.other_units) == (1, (0,))
    assert {p.name for p in plan.parameters if p.ignored} == {
        f"layers.{i}.norm.{n}" for i in range(3) for n in ("weight", "bias")
    }
    assert {p.unit for p in plan.parameters if not p.trainable} == {1, 2}
    assert plan.checkpointed == ("layers.0.mlp", "layers.1.mlp", "layers.2.mlp")
    assert plan.order is None


def test_the_order_of_a_replay_is_that_of_the_plan(models: Path) -> None:
    args = {"order": (2, 0, 0)}
    alone, _ = run(models, model_args=args, plan_only=True)
    replayed, _ = run(models, model_args=args, checkpoint=("Expert",))
    assert alone.order == replayed.order == (0, 3, 1, 1)


def test_a_failed_replay_leaves_the_plan(models: Path) -> None:
    with pytest.raises(ReplayError) as error:
        run(models, model_args={"order": [7]})
    assert error.value.plan is not None
    assert len(unit_plan(error.value.plan, a_job(models), None).units) == 4


@pytest.mark.parametrize(
    ("factory", "args", "suggested"),
    [
        ("net", {}, ("Block",)),
        ("net", {"experts": 4}, ("Block",)),
        ("net", {"layers": 1, "experts": 8}, ("Expert",)),
        ("swin", {}, ("Block",)),
        ("layered", {}, ("Linear",)),
        ("by_name", {}, ("Block",)),
        ("hybrid", {}, ("Block", "Attention")),
        ("different", {}, ("Block", "Attention")),
        ("one_layer_six_times", {}, ("Block",)),
        ("towers", {}, ("Block",)),
        ("named_towers", {}, ("Block",)),
        ("attributes", {}, ("Block",)),
        ("plain_layers", {}, ("Linear",)),
        ("tables", {}, ("Block",)),
        ("mixed", {}, ()),
    ],
)
def test_suggestions(read: Read, factory: str, args: dict[str, object], suggested: tuple[str, ...]) -> None:
    plan = read(factory, model_args=args, wrap=("Nothing",))
    assert plan.suggested == suggested
    assert plan.missing == ("Nothing",)


def test_a_layer_that_is_listed_six_times_is_one_unit(read: Read) -> None:
    plan = read("one_layer_six_times")
    assert [u.name for u in plan.units] == ["", "layers.0"]
    assert {p.unit for p in plan.parameters if p.name.startswith("layers.")} == {1}
    assert not any(p.other_units for p in plan.parameters)
    assert {len(p.other_names) for p in plan.parameters if p.unit == 1} == {5}


def test_fsdp1_wraps_the_first_place_of_a_listed_layer_alone(read: Read) -> None:
    plan = read("one_layer_six_times", api="fsdp1")
    assert {p.other_units for p in plan.parameters if p.unit == 1} == {(0,)}  # WRP004


def test_fsdp1_wraps_subclasses_and_fsdp2_does_not(read: Read) -> None:
    assert [u.kind for u in read("hybrid").units] == ["Row", "Block", "Block", "Block"]
    assert [u.kind for u in read("hybrid", api="fsdp1").units[2:]] == ["Block", "Attention", "Block"]


def test_modules_without_a_forward_are_containers(read: Read) -> None:
    plan = read("swin", wrap=("Stage", "Block"))
    assert {u.kind for u in plan.units if u.container} == {"Swin", "Stage"}


def test_what_lies_elsewhere(read: Read) -> None:
    plan = read("mixed", wrap=())
    by_name = {p.name: p for p in plan.parameters}
    assert by_name["b"].device == "cpu" and by_name["a.weight"].device == "meta"
    assert [n for n, p in by_name.items() if not p.contiguous] == ["c"]
    assert by_name["q"].dtype == "uint8" and by_name["scale"].shape == ()
    assert plan.optimizers == ("optimizer",)


def test_what_of_the_suggested_blocks_is_left_to_the_root(read: Read) -> None:
    assert read().left == ()
    layers = read(wrap=("Expert",)).left
    assert [(k.kind, k.count, k.elements) for k in layers] == [("Block", 3, 3 * (3 + 2 * 20))]


def test_an_optimizer_that_the_function_keeps_elsewhere(read: Read) -> None:
    kept = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])]
    assert read("by_hook").optimizers == ("an AdamW of the model's function",)
    assert read("by_name").optimizers == ()
    assert kept


def test_inside_of_units_and_of_the_root(read: Read) -> None:
    plan = read(model_args={"experts": 2})
    assert [(i.kind, i.count) for i in plan.units[1].deeper] == [("Expert", 3), ("Linear", 6)]
    assert [i.kind for i in plan.units[0].inner] == ["Embedding", "Linear"]
    assert [(i.kind, i.count) for i in plan.units[1].inner] == [("Expert", 3), ("LayerNorm", 1)]


def test_70b_is_read_on_meta(models: Path) -> None:
    plan, done = run(models, "big", wrap=("Layer",), world_size=1024, batch=None, plan_only=True)
    assert 65e9 < plan.elements < 72e9
    assert len(plan.units) == 81
    rss = done.about["rss_bytes"]
    assert isinstance(rss, int) and rss < 600 << 20
