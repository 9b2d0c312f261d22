"""Every way of sharding, on models whose bytes can be reckoned: what a replay says against the identities of FSDP.

A matrix has 4 Mi elements: 16 MiB in float32, 8 MiB in bfloat16, and a shard of 2 MiB on 8 ranks. `net` has four
of them in blocks and two in the root. An activation (8 rows) takes 32 KiB in bfloat16, the batch 64 KiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import START
from fsdp_doctor.memory.simulate import Run, Step, steps
from tests.support.replays import runs

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)

MIB = 1 << 20
MODELS = Path(__file__).parents[2] / "fixtures" / "memory_truth" / "reckoned" / "models.py"
BATCH, ACTIVATION = MIB // 16, MIB // 32
MATRIX, GATHERED, SHARD = 16 * MIB, 8 * MIB, 2 * MIB
P, S = 6 * MATRIX, 6 * SHARD
"""All parameters in float32, and one rank's shard of them."""
EVERY = {"wrap": ("Block", "Linear"), "model_args": {"layers": 8}}
ROUTED = {"model": "routed", "batch_args": {"rows": 8192}}
"""8192 rows of 8 KiB for four experts: 8 MiB of rows for each, where they are chosen evenly."""
TUNED = {
    "model": "tuned",
    "batch": f"{MODELS}:tuned_batch",
    "wrap": ("LlamaDecoderLayer",),
    "param_dtype": None,
    "reduce_dtype": None,
}
JOBS: dict[str, dict[str, object]] = {
    "fsdp2": {},
    "fsdp2 fused": {"optimizer": "adamw_fused"},
    "fsdp2 loop": {"optimizer": "adamw_loop"},
    "fsdp2 one unit": {"wrap": ()},
    "fsdp2 kept": {"strategy": "SHARD_GRAD_OP"},
    "fsdp2 to 4": {"strategy": "RESHARD_INT:4"},
    "fsdp2 sync": {"accumulate": 2},
    "fsdp2 no sync": {"accumulate": 2, "no_sync": True},
    "fsdp2 hybrid": {"world_size": 64, "shard_size": 8},
    "fsdp2 offload": {"offload": True},
    "fsdp2 ahead 1": {**EVERY, "forward_prefetch": 1, "backward_prefetch": "1"},
    "fsdp2 ahead 2": {**EVERY, "forward_prefetch": 2, "backward_prefetch": "2"},
    "fsdp2 lora": {"model": "adapted", "wrap": ("Adapted",)},
    "fsdp2 frozen": {"model": "frozen"},
    "fsdp2 tied": {"model_args": {"tied": True}},
    "fsdp2 ignored": {"model_args": {"kept": True}, "ignored": ("Kept",), "clip": True},
    "fsdp1": {},
    "fsdp1 one unit": {"wrap": ()},
    "fsdp1 kept": {"strategy": "SHARD_GRAD_OP"},
    "fsdp1 sync": {"accumulate": 2},
    "fsdp1 no sync": {"accumulate": 2, "no_sync": True},
    "fsdp1 hybrid": {"world_size": 64, "strategy": "HYBRID_SHARD"},
    "fsdp1 hybrid kept": {"world_size": 64, "strategy": "_HYBRID_SHARD_ZERO2"},
    "fsdp1 offload": {"offload": True},
    "fsdp1 whole offload": {"offload": True, "strategy": "NO_SHARD"},
    "fsdp1 pre": EVERY,
    "fsdp1 none": {**EVERY, "backward_prefetch": "none"},
    "fsdp1 unlimited": {"limit_all_gathers": False},
    "fsdp1 lora": {"model": "adapted", "wrap": ("Adapted",)},
    "fsdp1 lora flat": {"model": "adapted", "wrap": ("Adapted",), "use_orig_params": False},
    "fsdp1 frozen": {"model": "frozen"},
    "fsdp1 ignored": {"model_args": {"kept": True}, "ignored": ("Kept",)},
    "fsdp2 routed": {**ROUTED, "imbalance": 2.0},
    "fsdp2 routed 3": {**ROUTED, "imbalance": 3.0},
    "fsdp2 routed 16": {**ROUTED, "imbalance": 16.0},
    "fsdp2 tuned": TUNED,
    "fsdp1 tuned": TUNED,
    "fsdp1 tied": {"model_args": {"tied": True}, "keep_ties": True},
    "ddp": {},
    "ddp tied": {"model_args": {"tied": True}, "keep_ties": True},
    "ddp parted": {"model_args": {"tied": True}},
    "ddp views": {"gradient_as_bucket_view": True},
    "ddp no sync": {"accumulate": 2, "no_sync": True, "gradient_as_bucket_view": True},
}


def a_job(name: str, model: str = "net", **more: object) -> Job:
    api = name.partition(" ")[0]
    given: dict[str, object] = {"world_size": 8, "api": api}
    if api != "ddp":
        given |= {"wrap": ("Block",), "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    given["batch"] = f"{MODELS}:batch"
    job = Job(f"{MODELS}:{model}", **{**given, **more})  # type: ignore[arg-type]
    job.validate()
    return job


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run | str]:
    jobs = [a_job(name, **more) for name, more in JOBS.items()]  # type: ignore[arg-type]
    return dict(zip(JOBS, runs(jobs, tmp_path_factory.mktemp("configured"), 280), strict=True))


class Replayed:
    """Figures of one configuration, without the batch."""

    def __init__(self, found: Run | str) -> None:
        assert isinstance(found, Run), found
        self.run, self.steps = found, steps(found.phases)

    @property
    def last(self) -> Step:
        return self.steps[-1]

    def after(self, phase: str) -> int:
        """Bytes after the last phase of a name."""
        return [p.after for p in self.run.phases if p.name == phase][-1] - BATCH

    def peak(self, phase: str) -> int:
        return [p.peak for p in self.run.phases if p.name == phase][-1] - BATCH


@pytest.fixture
def of(replayed: dict[str, Run | str]) -> type[Replayed]:
    class Named(Replayed):
        def __init__(self, name: str) -> None:
            super().__init__(replayed[name])

    return Named


@pytest.mark.parametrize("api", ["fsdp2", "fsdp1"])
def test_shards_gradients_and_states(of: type[Replayed], api: str) -> None:
    first, last = of(api).steps
    assert (first.after_backward, last.after_backward) == (2 * S + BATCH, 4 * S + BATCH)
    assert last.opt_peak == 5 * S + BATCH  # foreach: one more copy of the shard


def test_what_the_optimizer_takes_for_its_step(of: type[Replayed]) -> None:
    assert of("fsdp2 fused").last.opt_peak == 4 * S + 6 * 512 + BATCH  # its six counters are on the GPU
    assert 2 * SHARD <= of("fsdp2 loop").last.opt_peak - 4 * S - BATCH <= 3 * SHARD  # of one matrix at a time


@pytest.mark.parametrize(("api", "more"), [("fsdp2", 0), ("fsdp1", S)])
def test_one_unit_gathers_and_reduces_all(of: type[Replayed], api: str, more: int) -> None:
    steady = 3 * S  # shards and states
    peak = of(f"{api} one unit").last.fwd_bwd_peak
    packed = 8 * (S // 2048) if api == "fsdp2" else 0  # a word for 2 KiB of a shard
    assert 0 <= peak - (steady + P // 2 + P + more + BATCH + packed) <= 2048  # the loss and its gradient


def test_kept_after_forward(of: type[Replayed]) -> None:
    base = of("fsdp2").after("forward")
    assert of("fsdp2 kept").after("forward") - base == P // 2
    assert of("fsdp2 to 4").after("forward") - base == 4 * GATHERED // 4  # the blocks alone
    assert (
        of("fsdp1 kept").after("forward") - of("fsdp1").after("forward") == 4 * GATHERED
    )  # FSDP1 keeps its root


@pytest.mark.parametrize(("api", "unsharded"), [("fsdp2", P), ("fsdp1", P // 2)])
def test_gradients_without_sync_are_whole(of: type[Replayed], api: str, unsharded: int) -> None:
    """FSDP2 accumulates in the dtype of reduction, FSDP1 in that of the parameters."""
    without, each = of(f"{api} no sync"), of(f"{api} sync")
    assert without.after("forward") - each.after("forward") == unsharded - S
    assert without.last.after_backward == each.last.after_backward == of(api).last.after_backward


@pytest.mark.parametrize(
    ("hybrid", "group"),
    [("fsdp2 hybrid", "fsdp2"), ("fsdp1 hybrid", "fsdp1"), ("fsdp1 hybrid kept", "fsdp1 kept")],
)
def test_hybrids_take_what_one_shard_group_takes(of: type[Replayed], hybrid: str, group: str) -> None:
    assert of(hybrid).steps == of(group).steps


def test_each_unit_ahead_is_one_unit_more(of: type[Replayed]) -> None:
    one, two = of("fsdp2 ahead 1"), of("fsdp2 ahead 2")
    assert two.peak("forward") - one.peak("forward") == GATHERED - ACTIVATION  # reached one unit earlier
    assert two.peak("backward") - one.peak("backward") == GATHERED - SHARD + ACTIVATION
    before, none = of("fsdp1 pre"), of("fsdp1 none")
    assert before.peak("backward") - none.peak("backward") == GATHERED - SHARD + 2 * ACTIVATION


def test_the_rate_limiter_does_not_change_what_is_allocated(of: type[Replayed]) -> None:
    assert of("fsdp1 unlimited").steps == of("fsdp1").steps


@pytest.mark.parametrize("api", ["fsdp2", "fsdp1"])
def test_offload_leaves_units_and_activations_on_the_gpu(of: type[Replayed], api: str) -> None:
    found = of(f"{api} offload")
    assert found.last.after_backward == found.last.opt_peak == BATCH
    saved = of(api).last.fwd_bwd_peak - found.last.fwd_bwd_peak
    assert 3 * S <= saved <= 4 * S
    host = found.run.host
    assert (
        host.pinned == host.pinned_requested == 2 * S
    )  # parameters and gradients; their sizes are powers of two
    assert 4 * S <= host.peak <= 5 * S


def test_offload_of_whole_parameters(of: type[Replayed]) -> None:
    found = of("fsdp1 whole offload")
    assert found.last.after_backward == BATCH
    assert found.run.host.pinned_requested == 2 * P
    assert found.run.host.peak >= 4 * P


def test_lora_pays_gradients_of_the_whole_unit_under_fsdp1_alone(of: type[Replayed]) -> None:
    shards = 4 * (MATRIX + 2 * MIB) // 8 + 2 * SHARD
    trained = 4 * 2 * MIB // 8 + 2 * SHARD
    assert of("fsdp2 lora").steps[0].after_backward == shards + trained + BATCH
    assert of("fsdp1 lora").steps[0].after_backward == 2 * shards + BATCH


def test_frozen_parameters(of: type[Replayed]) -> None:
    assert of("fsdp2 frozen").steps[0].after_backward == S + 3 * SHARD + BATCH
    assert (
        of("fsdp1 frozen").steps[0].after_backward == S + 4 * SHARD + BATCH
    )  # the root is one flat parameter


def test_flat_parameters_refuse_a_mixture(replayed: dict[str, Run | str]) -> None:
    said = replayed["fsdp1 lora flat"]
    assert isinstance(said, str) and "use_orig_params=False" in said


def test_tied_weights_of_one_unit_are_one(of: type[Replayed]) -> None:
    assert of("fsdp2 tied").steps[0].after_backward == 2 * (S - SHARD) + BATCH


def test_tied_weights_are_one_or_two_as_the_model_is_built(of: type[Replayed]) -> None:
    whole, one = of("fsdp1").steps[0], of("fsdp1 tied").steps[0]
    assert whole.after_backward - one.after_backward == 2 * SHARD
    assert of("ddp parted").steps == of("ddp").steps
    # itself, its gradient, the bucket, two states, their root
    whole, one = of("ddp").steps[1], of("ddp tied").steps[1]
    assert whole.opt_peak - one.opt_peak == 6 * MATRIX


@pytest.mark.parametrize("api", ["fsdp2", "fsdp1"])
def test_ignored_parameters_are_whole(of: type[Replayed], api: str) -> None:
    first, last = of(f"{api} ignored").steps
    assert first.after_backward == 2 * (S + MATRIX) + BATCH
    assert 0 <= last.after_backward - (4 * (S + MATRIX) + BATCH) < 16384  # norms that clipping leaves


def test_the_busiest_expert_counts_where_its_gradients_are(of: type[Replayed]) -> None:
    """All rows are kept whoever gets them. In backward the busiest expert's come first: the gradient of its
    output takes the place of its output, that of its input comes on top. It cannot get more than four shares."""
    busy = [of(f"fsdp2 routed{n}") for n in ("", " 3", " 16")]
    for less, more in pairwise(busy):
        assert abs(more.after("forward") - less.after("forward")) < MIB // 16  # indices, and whole rows
        assert abs(more.peak("backward") - less.peak("backward") - 8 * MIB) < MIB // 16


def test_lora_of_peft(of: type[Replayed]) -> None:
    """Each of two layers has 10 Mi elements in matrices, 2 Ki in norms and LoRA's 4 x 64 Ki; the root 2 Mi and 1 Ki.

    Under FSDP1 the optimizer's state follows what of the trained parameters lies in rank 0's part of a layer:
    q's two factors, since the first eighth ends in k.
    """
    if find_spec("peft") is None:
        pytest.skip("needs peft")
    factors = 4 * (4 << 16) // 8  # bytes of a rank's part of one layer's
    layers, root = 2 * (10 * MIB + 2048 + (4 << 16)), 2 * MIB + 1024
    held = 4 * (layers + root) // 8 + 2 * 512 + 1024  # two buffers of rotary positions, the batch
    assert of("fsdp2 tuned").steps[0].after_backward == held + 2 * factors
    assert of("fsdp2 tuned").last.after_backward == held + 6 * factors
    whole = of("fsdp1 tuned")
    assert whole.steps[0].after_backward == held + 4 * layers // 8
    assert whole.last.after_backward - whole.steps[0].after_backward == 2 * 2 * 4 * (2 << 16)


def test_bucket_views_spare_the_gradients(of: type[Replayed]) -> None:
    plain, views = of("ddp"), of("ddp views")
    assert plain.last.after_backward - views.last.after_backward == P
    assert plain.last.opt_peak - views.last.opt_peak == P
    assert of("ddp no sync").last.after_backward == views.last.after_backward


BUCKETS = """
import importlib.util, json, os, sys, types
import torch, torch.distributed as dist
from torch import nn
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
rules = start.load("data_parallel").DataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.Linear(512, 512), nn.Linear(512, 8))

def buckets(model, before, step):
    before()
    model(torch.ones(2, 512)).sum().backward()
    step()
    found = {}
    for name, p in model.named_parameters():
        storage = p.grad.untyped_storage()
        found.setdefault(storage._cdata, [storage.nbytes()]).append(name.replace("module.", ""))
    model.zero_grad()
    return sorted(found.values())

for options in json.loads(sys.argv[2]):
    options["gradient_as_bucket_view"] = True
    real, ours = nn.parallel.DistributedDataParallel(net(), **options), net()
    reducer = rules(ours, types.SimpleNamespace(label=None), options)
    for i in range(4):
        torchs = buckets(real, lambda: None, lambda: None)
        said = buckets(ours, reducer.before_forward, lambda: None)
        assert torchs == said, (options, i, torchs, said)
print("the same")
"""


def test_buckets_are_torchs_own() -> None:
    """Sizes and members of the buckets in four iterations, against DistributedDataParallel on a real rank."""
    options = '[{}, {"find_unused_parameters": true}, {"static_graph": true}, {"bucket_cap_mb": 2}, {"bucket_cap_mb": 0.01}]'
    done = subprocess.run(
        [sys.executable, "-c", BUCKETS, str(START), options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "the same", done.stderr[-2000:]


BROADCASTS = """
import importlib.util, sys, types
import torch, torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
module = start.load("data_parallel")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tracker = types.SimpleNamespace(label="")

class Copies(TorchDispatchMode):
    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.cat.default or "empty" in str(func) and tracker.label == "ddp: broadcast":
            found.append(out.untyped_storage().nbytes())
        return out

def net():
    return nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.Linear(512, 64), nn.BatchNorm1d(64), nn.Linear(64, 1))

def seen(run):
    global found
    found = []
    with Copies():
        run()
    return found

def train(model, quiet, before):
    for silent in (False, True, True, False, False):
        with quiet() if silent else torch.enable_grad():
            before()
            model(torch.ones(2, 256)).sum().backward()

real, ours = [], []
wrapped = seen(lambda: real.append(nn.parallel.DistributedDataParallel(net())))
ours.append(net())
assert wrapped == seen(lambda: ours.append(module.DataParallel(ours[0], tracker))) and len(wrapped) == 2, wrapped
assert real[0].broadcast_bucket_size == module.BROADCAST
forwards = seen(lambda: train(real[0], real[0].no_sync, lambda: None))
assert forwards == seen(lambda: train(ours[0], ours[1].no_sync, ours[1].before_forward)), forwards
assert len(forwards) == 6, forwards
module.BROADCAST = limit = 64 << 10
tensors = [torch.zeros(n << 10) for n in (1, 20, 3, 40, 2, 8, 1)] + [torch.zeros(5, dtype=torch.int64)]
alone = seen(lambda: dist._broadcast_coalesced(dist.group.WORLD, tensors, limit, 0))
assert alone == seen(lambda: ours[1]._broadcast(tensors)) and len(alone) == 3, alone
print("the same")
"""


def test_what_ddp_broadcasts_is_copied_as_torch_copies_it() -> None:
    """Sizes of the copies, in their order, against DistributedDataParallel on a real rank."""
    done = subprocess.run(
        [sys.executable, "-c", BROADCASTS, str(START)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "the same", done.stderr[-2000:]
