"""A replay's short ways leave the same events, in the same order, as torch's own ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import START

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BOTH = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("start", sys.argv[1])
start = importlib.util.module_from_spec(spec)
spec.loader.exec_module(start)
main, replay, ground = start.load("main").main, start.load("replay"), start.load("ground")
shortcuts = start.load("shortcuts")
from torch._subclasses.fake_tensor import FakeTensorMode
for job in sys.argv[2:]:
    pid = os.fork()
    if not pid:
        if job.endswith("long/job.json"):
            assert replay.Fakes is not FakeTensorMode
            replay.Fakes, ground.of_shards, shortcuts.take = FakeTensorMode, lambda made: made, lambda: None
        main(job)
        os._exit(1)
    os.waitpid(pid, 0)
"""
MODELS = Path(__file__).parents[2] / "fixtures" / "memory_truth" / "shared" / "models.py"
LLAMA = {"vocab": 997, "dim": 64, "heads": 4, "layers": 2, "hidden": 172}
BASE = Job(
    f"{MODELS}:llama",
    f"{MODELS}:llama_batch",
    8,
    LLAMA,
    {"batch": 2, "seq": 48, "vocab": 997},
    wrap=("LlamaBlock",),
    param_dtype="bfloat16",
    reduce_dtype="float32",
)
CASES: dict[str, dict[str, object]] = {
    "adamw": {"clip": True, "accumulate": 2},
    "fused": {"optimizer": "adamw_fused", "checkpoint": ("LlamaBlock",)},
    "loop": {"optimizer": "adamw_loop", "ignored": ("RMSNorm",)},
    "momentum": {"optimizer": "sgdm", "strategy": "SHARD_GRAD_OP"},
    "adagrad": {"optimizer": "adagrad", "world_size": 256},
    "rmsprop": {"optimizer": "rmsprop", "strategy": "RESHARD_INT:2"},
    "offload": {"offload": True},
    "fsdp1": {"api": "fsdp1", "clip": True},
    "ddp": {"api": "ddp", "wrap": (), "param_dtype": None, "reduce_dtype": None, "autocast": "bfloat16"},
}
WAYS = ("short", "long")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, paths = tmp_path_factory.mktemp("ways"), []
    for case, changed in CASES.items():
        for way in WAYS:
            place = folder / case / way
            place.mkdir(parents=True)
            described = {**BASE.to_json(), "gpu": {"sm": 90, "processors": 132}}
            described.update({k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()})
            (place / "job.json").write_text(json.dumps(described))
            paths.append(str(place / "job.json"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-B", "-c", BOTH, str(START), *paths]
    subprocess.run(command, env=environment, timeout=200, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_both_ways_leave_the_same_events(case: str, replayed: Path) -> None:
    found = []
    for way in WAYS:
        place = replayed / case / way
        result = json.loads((place / "result.json").read_text())
        assert "refused" not in result, result["refused"]
        for key in ("seconds", "stages", "rss_bytes"):
            del result[key]
        assert result["rows"] > 200
        found.append((result, (place / "events.bin").read_bytes()))
    assert found[0] == found[1]
