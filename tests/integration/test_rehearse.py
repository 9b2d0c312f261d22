"""Scripts as people write them, rehearsed; what a plain one takes is what `dryrun` says of the same job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "scripts"
BLOCK = 2 << 20
"""The least that the allocator asks the driver for."""
BIN = Path(sys.executable).parent


def doctor(*words: str, cwd: Path = SCRIPTS) -> tuple[int, dict[str, Any], str]:
    variables = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", *words],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.stderr


def rehearse(*command: str, options: tuple[str, ...] = (), cwd: Path = SCRIPTS) -> tuple[int, dict[str, Any]]:
    return doctor("rehearse", "--format", "json", *options, "--", *command, cwd=cwd)[:2]


def finding(report: Mapping[str, Any], code: str = "MEM040") -> dict[str, Any]:
    return next(r for r in report["results"] if r["code"] == code)


ACCELERATE = (
    "accelerate launch --use_fsdp --num_processes 4 --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
    "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer accelerate_fsdp.py --out OUT"
)
TRAINER = "python trainer_fsdp.py - --output_dir OUT --per_device_train_batch_size 2 --max_steps 5 --report_to none --bf16"
SHARDED = (
    "--fsdp",
    "full_shard auto_wrap",
    "--fsdp_config",
    '{"transformer_layer_cls_to_wrap":["LlamaDecoderLayer"]}',
)
STYLES: Mapping[str, tuple[str, tuple[str, ...], str | None]] = {
    "torchrun, FSDP1": ("torchrun --nproc-per-node 4 torchrun_fsdp1.py OUT", (), None),
    "torchrun, FSDP2": (
        "torchrun --nproc-per-node 4 torchrun_fsdp2.py --out OUT --save-every 1 --workers 2",
        (),
        None,
    ),
    "everything that is asked": ("torchrun --nproc-per-node 4 asks.py OUT", (), None),
    "accelerate": (ACCELERATE, (), "accelerate"),
    "Trainer": (f"torchrun --nproc-per-node 4 {TRAINER.removeprefix('python ')}", SHARDED, "transformers"),
    "Lightning": ("python lightning_fsdp.py OUT 4 1", (), "lightning"),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_rehearsed_and_nothing_is_written(style: str, tmp_path: Path) -> None:
    line, more, needs = STYLES[style]
    if needs is not None:
        pytest.importorskip(needs)
    out = tmp_path / "out"
    if style == "everything that is asked":
        (out / "keep").mkdir(parents=True)
        (out / "keep" / "log.txt").write_text("line\n")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    command = [str(out) if word == "OUT" else word for word in line.split()]
    options = ("--world-size", "4") if style == "Lightning" else ()
    code, report = rehearse(*command, *more, options=options)
    assert code == 0, report["results"]
    data = report["data"]
    assert data["steps_done"] == 2 and data["peak"]["allocated_bytes"] > 1 << 20
    assert not any(u["how"] == "file" and Path(u["path"]).is_dir() for u in data["not_written"])
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


BF16 = ("--wrap", "Block", "--param-dtype", "bf16", "--reduce-dtype", "fp32")
PLAIN: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "FSDP2": ((), BF16),
    "FSDP2, checkpointed, clipped, accumulating": (
        ("--checkpoint", "--clip", "--accumulate", "2"),
        (*BF16, "--checkpoint-activations", "Block", "--clip", "--accumulate", "2"),
    ),
    "FSDP1": (
        ("--api", "fsdp1", "--strategy", "SHARD_GRAD_OP", "--fp32"),
        ("--api", "fsdp1", "--strategy", "SHARD_GRAD_OP", "--wrap", "Block"),
    ),
    "FSDP2 in groups, not resharded": (
        ("--strategy", "SHARD_GRAD_OP", "--shard-size", "4", "--fp32"),
        ("--strategy", "SHARD_GRAD_OP", "--shard-size", "4", "--wrap", "Block"),
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_script_takes_what_the_dry_run_says(name: str) -> None:
    script, flags = PLAIN[name]
    job = ("--model", "llama.py:build", "--batch", "llama.py:batch", "--world-size", "8", "--format", "json")
    with ThreadPoolExecutor(2) as pool:
        dry = pool.submit(doctor, "dryrun", *job, *flags)
        options = ("--world-size", "8", "--steps", "3")  # a dry-run counts one step more than it replays
        code, report = rehearse("python", "plain.py", *script, options=options)
    assert code == 0, report["results"]
    predicted = dry.result()[1]["data"]
    assert report["data"]["peak"]["allocated_bytes"] == predicted["peak"]["allocated_bytes"]


MEASURED: Mapping[str, Any] = json.loads((SCRIPTS.parent / "rehearsed.json").read_text())
RUNS = {" ".join(r["arguments"]) + f" on {r['world_size']}": r for r in MEASURED["runs"]}
CHOSEN = (
    "--api fsdp1 on 64",
    "--autocast on 8",
    "--checkpoint --clip on 64",
    "--offload on 8",
    "--api ddp --autocast on 64",
)
"""One of each way; all of them would take a minute."""


@pytest.fixture(scope="module")
def fakes() -> Mapping[str, dict[str, Any]]:
    """Rehearsals on fake tensors of what was measured on a GPU, two at a time."""

    def one(name: str) -> dict[str, Any]:
        run = RUNS[name]
        options = ("--world-size", str(run["world_size"]), "--device", "fake")
        code, report = rehearse("python", run["script"], *run["arguments"], options=options)
        assert code == 0, report["results"]
        data: dict[str, Any] = report["data"]
        return data

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CHOSEN, pool.map(one, CHOSEN), strict=True))


@pytest.mark.parametrize("name", CHOSEN)
def test_fake_tensors_take_what_a_gpu_took(fakes: Mapping[str, dict[str, Any]], name: str) -> None:
    """To the byte, cuBLAS's workspaces apart, which are there from the second step on."""
    run, fake = RUNS[name], fakes[name]
    assert fake["peak"]["allocated_bytes"] == run["peak"] - run["workspaces"] == run["fake_peak"]
    assert fake["peak"]["init_bytes"] == run["init"]
    second = {key: value - run["workspaces"] for key, value in run["steps"][1].items()}
    assert fake["steps"][1] == second
    low, high = fake["peak"]["reserved_bytes"], fake["peak"]["reserved_high_bytes"]
    assert low - BLOCK <= run["reserved"] - run["workspaces"] <= high


def test_every_run_on_a_gpu_was_met() -> None:
    """DDP's reducer is C++, whose small blocks the fake one does not all know."""
    assert len(RUNS) >= 18
    for run in RUNS.values():
        allowed = 4096 if "ddp" in run["arguments"] else 0
        assert abs(run["peak"] - run["workspaces"] - run["fake_peak"]) <= allowed, run["arguments"]


@pytest.mark.gpu
@pytest.mark.parametrize("script", [("--api", "fsdp1"), ("--api", "ddp", "--fp32")], ids=" ".join)
def test_on_a_gpu_it_takes_what_it_takes_on_fake_tensors(script: tuple[str, ...]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")

    def peak(device: str) -> int:
        options = ("--world-size", "8", "--device", device, "--python", sys.executable)
        code, report = rehearse(sys.executable, "plain.py", *script, options=options)
        assert code == 0, report["results"]
        found = report["data"]["peak"]
        return int(found["allocated_bytes"] - found["workspace_bytes"])

    with ThreadPoolExecutor(2) as pool:
        measured, fake = pool.map(peak, ("gpu", "fake"))
    assert abs(measured - fake) <= (4096 if "ddp" in script else 0)


@pytest.mark.parametrize(
    ("text", "options", "code", "words"),
    [
        ("import torch\nraise KeyError('lr')\n", (), 1, "KeyError: 'lr'"),
        ("print('nothing to train')\n", (), 1, "ended before any forward"),
        ("import sys\nsys.exit(3)\n", (), 1, "status 3"),
        ("import torch\nopen('missing/log.txt', 'w')\n", (), 1, "missing/log.txt'"),
        ("while True: pass\n", ("--deadline", "8"), 3, "optimizer steps"),
        ("import urllib.request as u\nu.urlopen('http://example.com/x')\n", (), None, "example.com"),
    ],
    ids=["raises", "never steps", "exits", "writes into no folder", "forever", "network"],
)
def test_a_script_that_does_not_train_is_one_finding(
    tmp_path: Path, text: str, options: tuple[str, ...], code: int | None, words: str
) -> None:
    (tmp_path / "train.py").write_text(text)
    found, report = rehearse("python", "train.py", options=("--world-size", "4", *options), cwd=tmp_path)
    said = finding(report)
    assert words in said["found"] and "Traceback" not in said["found"]
    assert "fsdp-doctor-rehearsal" not in said["found"]
    assert found == code if code is not None else found in (1, 3)
    if "KeyError" in words:
        assert said["subject"]["line"] == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [(("python", "missing.py"), "missing.py"), ((), "COMMAND"), (("python", "train.py"), "--world-size")],
)
def test_a_wrong_command_line_is_one_line(tmp_path: Path, command: tuple[str, ...], words: str) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    code, _, said = doctor("rehearse", "--", *command, cwd=tmp_path)
    assert code == 2 and words in said and "Traceback" not in said
