"""`fsdp-doctor dryrun` as it is called: good input, and every kind of bad input that a user can give."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

MODELS = """
import torch, torch.nn as nn, torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))

class Net(nn.Module):
    def __init__(self, dim=64, layers=2, what="loss"):
        super().__init__()
        self.blocks, self.what = nn.ModuleList(Block(dim) for _ in range(layers)), what

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        if self.what == "nonzero":
            x = x * torch.linalg.eigvals(x.float()).real.sum()
        if self.what == "logits":
            return x
        return (x.mean(), x) if self.what == "tuple" else x.mean()

def net(**kw):
    return Net(**kw)

def batch(device, dim=64, rows=8):
    return torch.zeros(rows, dim, device=device),

def prints(**kw):
    print("noise" * 1000)
    return Net(**kw)

def raises():
    raise RuntimeError("weights are missing")

def cuda():
    return Net().cuda()

def network():
    import urllib.request
    urllib.request.urlopen("http://example.com/weights.bin", timeout=5)

def forever():
    while True: pass

def exits():
    raise SystemExit(3)

def nothing():
    return None

def huge():
    return nn.Sequential(*[nn.Linear(65536, 65536, bias=False) for _ in range(24)], Mean())

class Mean(nn.Module):
    def forward(self, x):
        return x.mean()

def huge_batch(device):
    return torch.zeros(2, 65536, device=device),
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


def dryrun(
    models: Path, model: str = "net", batch: str | None = "batch", *more: str
) -> tuple[int, dict, str]:
    command = [
        sys.executable,
        "-m",
        "fsdp_doctor",
        "dryrun",
        "--model",
        f"{models}:{model}",
        "--format",
        "json",
    ]
    command += ["--batch", f"{models}:{batch}"] if batch else []
    command += ["--world-size", "8", *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, cwd=models.parent, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.stderr


def finding(report: dict) -> dict:
    return next(r for r in report["results"] if r["code"] == "MEM001")


def test_an_answer(models: Path) -> None:
    code, report, _ = dryrun(
        models, "prints", "batch", "--wrap", "Block", "--gpu", "H100 80GB", "--param-dtype", "bf16"
    )
    data = report["data"]
    assert code == 0 and report["verdict"] == "pass"
    assert data["params"] == 2 * (64 * 256 * 2 + 256 + 64)
    assert [u["name"] for u in data["units"]] == ["", "blocks.0", "blocks.1"]
    assert data["fits"] is True
    assert (
        data["peak"]["reserved_bytes"]
        >= data["peak"]["allocated_bytes"]
        == max(max(s["fwd_bwd_peak"], s["opt_peak"]) for s in data["steps"])
    )
    assert {m["phase"] for m in data["timeline"]} >= {"forward", "backward", "optimizer"}
    assert sum(p["bytes"] for p in data["peak"]["parts"]) > 0


def test_a_model_larger_than_the_host(models: Path) -> None:
    code, report, _ = dryrun(models, "huge", "huge_batch", "--wrap", "Linear", "--gpu", "H200")
    assert code == 1
    assert report["data"]["params"] == 24 * 65536**2
    assert report["data"]["peak"]["allocated_bytes"] > 100 << 30
    assert report["data"]["replay_rss_bytes"] < 600 << 20
    assert any(r["code"] == "MEM002" and r["status"] == "fail" for r in report["results"])


@pytest.mark.parametrize(
    ("model", "batch", "more", "code", "words", "line"),
    [
        ("raises", "batch", ("--select", "WRP"), 1, "weights are missing", "raise RuntimeError"),
        ("cuda", "batch", (), 1, "leave the device to the doctor", "return Net().cuda()"),
        ("network", "batch", (), 1, "needs the network", "urlopen"),
        ("exits", "batch", (), 1, "ends the process with code 3", "raise SystemExit"),
        ("nothing", "batch", (), 1, "not a torch.nn.Module", None),
        ("nett", "batch", (), 1, "has no function 'nett'", None),
        ("net", "batches", (), 1, "has no function 'batches'", None),
        ("net", "batch", ("--batch-args", '{"dim": 65}'), 1, "in module blocks.0.up", "self.up(x)"),
        ("net", "batch", ("--batch-args", '{"colour": 1}'), 1, "colour", None),
        ("net", "batch", ("--model-args", '{"what": "tuple"}'), 1, "a tuple of 2", None),
        ("net", "batch", ("--model-args", '{"what": "logits"}'), 1, "shape (8, 64)", None),
        ("forever", "batch", ("--deadline", "12"), 3, "while building the model", "while True: pass"),
    ],
)
def test_bad_input_is_one_finding(
    models: Path, model: str, batch: str, more: tuple[str, ...], code: int, words: str, line: str | None
) -> None:
    found, report, errors = dryrun(models, model, batch, *more)
    assert found == code, errors
    said = finding(report)
    assert words in said["found"]
    assert "Traceback" not in errors and "peak" not in report["data"]
    assert not any("--plan-only" in r["expected"] for r in report["results"])
    if line is not None:
        assert said["subject"]["file"] == str(models)
        assert line in models.read_text().splitlines()[said["subject"]["line"] - 1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--shard-size", "3"), "does not divide"),
        (("--gpu", "TPU v5"), "no such GPU"),
        (("--optimizer", "adam8bit"), "8-bit"),
        (("--model-args", "{"), "not JSON"),
        (("--model-args", "[1]"), "JSON object"),
        (("--param-dtype", "int8"), "one of float32"),
        (("--strategy", "RESHARD_INT:3"), "must divide"),
        (("--select", "MEM999"), "MEM999"),
    ],
)
def test_a_wrong_command_line_is_one_line(models: Path, more: tuple[str, ...], words: str) -> None:
    code, report, errors = dryrun(models, "net", "batch", *more)
    assert (code, report) == (2, {})
    assert words in errors


def test_an_interpreter_without_torch(models: Path, tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    shim.chmod(0o755)
    code, report, _ = dryrun(models, "net", "batch", "--python", str(shim))
    assert code == 3
    assert "has no torch" in finding(report)["found"]


@pytest.mark.parametrize(
    "more",
    [("--checkpoint-activations", "Bolck", "--select", "MEM"), ("--ignored-modules", "Bolck", "--plan-only")],
)
def test_a_class_that_is_not_there(models: Path, more: tuple[str, ...]) -> None:
    code, report, _ = dryrun(models, "net", "batch", *more)
    assert code == 1
    failed = [r for r in report["results"] if r["status"] == "fail"]
    assert [r["code"] for r in failed] == ["WRP002"]
    assert "Block in place of Bolck?" in failed[0]["found"] and "Block (2 x" in failed[0]["found"]


def test_the_plan_alone(models: Path) -> None:
    code, report, _ = dryrun(models, "net", None, "--plan-only", "--wrap", "LlamaBlock")
    assert code == 1
    failed = [r for r in report["results"] if r["status"] == "fail"]
    assert [r["code"] for r in failed] == ["WRP002"]
    assert "Block (2 x" in failed[0]["found"] and "--wrap Block" in failed[0]["fix"]["text"]
    assert "peak" not in report["data"]
    assert report["data"]["plan"]["suggested"] == ["Block"]
    unit = report["data"]["units"][0]
    assert unit["params"] == report["data"]["params"] <= unit["padded_params"]


@pytest.mark.timeout(120)
def test_a_folder_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "fsdp_doctor",
        "dryrun",
        "--model",
        f"hf:{tmp_path}",
        "--world-size",
        "8",
    ]
    command += [
        "--wrap",
        "LlamaDecoderLayer",
        "--param-dtype",
        "bf16",
        "--gpu",
        "A100 80GB",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    report = json.loads(done.stdout)
    assert done.returncode == 0, report["results"]
    data = report["data"]
    assert data["params"] == 2 * 1000 * 256 + 3 * (256 * (256 + 128 + 128 + 256 + 3 * 512) + 2 * 256) + 256
    assert len(data["units"]) == 4
    assert data["steps"][1]["after_backward"] > data["steps"][0]["after_backward"]
    assert data["unknown_operators"] == []
