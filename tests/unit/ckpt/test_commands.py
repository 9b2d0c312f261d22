"""`ckpt inspect`, `diff` and `latest` as whole processes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.checkpoints import saved
from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.read import read
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.cli.ckpt.inspect import KINDS
from fsdp_doctor.subjects.checkpoint import Kind
from tests.unit.ckpt.making import Tensor, small, torch_file

pytestmark = pytest.mark.timeout(100)


def run(*words: object, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", "ckpt", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout or done.stderr


def test_kinds_to_choose_are_those_of_tensors() -> None:
    assert [k.value for k in Kind] == list(KINDS)


def told(*words: object, status: int = 0) -> dict[str, Any]:
    found = json.loads(run(*words, "--format", "json", status=status))
    assert isinstance(found, dict)
    return found


def flip(folder: Path) -> str:
    """Change one bit of a weight; the file's path."""
    index = read_here(str(folder))
    tensor = next(t for t in index.tensors if t.key == "model.emb.weight")
    chunk = tensor.chunks[0]
    assert chunk.file is not None and chunk.start is not None and chunk.length is not None
    path = folder / index.files[chunk.file].path
    raw = bytearray(path.read_bytes())
    item = bytes(raw[chunk.start : chunk.start + chunk.length])
    archive, _ = torch_zip.read(io.BytesIO(item), len(item))
    stored = archive.storage("0")
    assert stored is not None
    at = torch_zip.data_offset(io.BytesIO(item), stored)
    assert at is not None
    raw[chunk.start + at + 2] ^= 1
    times = path.stat()
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return path.name


def test_inspect_a_real_one() -> None:
    path = saved.checkpoint("fsdp2_dcp.4")
    data = told("inspect", path)["data"]
    assert (data["format"], data["world_size"], data["shard_degree"]) == ("dcp", 4, 4)
    assert data["optimizer"] == "fqn" and data["optimizer_state"]["kind"] == "adam"
    assert data["step"] == 1 and data["problems"] == [] and data["dangerous_globals"] == []
    assert data["tensors"] == len(data["tensor_list"]) and data["files"] == len(data["file_list"])
    text = run("inspect", path)
    assert "4 ranks" in text and "emb.weight" in text and "PASS" in text


def test_inspect_with_filters() -> None:
    data = told("inspect", saved.checkpoint("fsdp2_dcp.4"), "--kind", "model", "--filter", "*.bias")["data"]
    assert data["tensor_list"] and all(t["key"].endswith(".bias") for t in data["tensor_list"])
    assert data["tensors"] > len(data["tensor_list"])


def test_verify_finds_a_flipped_bit(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    shutil.copytree(saved.checkpoint("fsdp2_dcp.2"), folder)
    found = told("inspect", folder, "--verify")["data"]["verified"]
    assert found["complete"] and found["wrong"] == 0 and found["checksums"] > 100
    assert found["bytes"] < sum(f.stat().st_size for f in folder.iterdir())
    name = flip(folder)
    assert told("inspect", folder)["verdict"] == "pass"  # nothing but the data tells
    report = told("inspect", folder, "--verify", status=1)
    (problem,) = report["data"]["problems"]
    assert (
        problem["kind"] == "checksum"
        and problem["path"] == name
        and problem["tensors"] == ["model.emb.weight"]
    )


def test_damage_is_a_failure_and_a_wrong_path_a_usage_error(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "ckpt")
    (folder / "__1_0.distcp").unlink()
    report = told("inspect", folder, status=1)
    assert [r["code"] for r in report["results"] if r["status"] == "fail"] == ["CKP005"]
    assert "no such file or folder" in run("inspect", tmp_path / "nowhere", status=2)
    assert "no such folder" in run("latest", tmp_path / "nowhere", status=2)
    assert "no command" in run("inspekt", folder, status=2)


def test_latest(tmp_path: Path) -> None:
    for step in (5, 100, 20):
        small().write(tmp_path / f"step-{step}")
    assert run("latest", "-q", tmp_path).strip() == str(tmp_path / "step-100")
    (tmp_path / "step-100" / ".metadata").rename(tmp_path / "step-100" / ".metadata.tmp")
    report = told("latest", tmp_path)
    assert report["data"]["latest"] == str(tmp_path / "step-20") and report["data"]["step"] == 20
    assert [n["step"] for n in report["data"]["newer"]] == [100]
    assert "did not finish" in report["data"]["newer"][0]["why"] and report["verdict"] == "warn"
    for step in (5, 20):
        (tmp_path / f"step-{step}" / "__0_0.distcp").unlink()
    assert told("latest", tmp_path, status=1)["data"]["latest"] is None


def test_latest_of_other_layouts(tmp_path: Path) -> None:
    run_folder = tmp_path / "run" / "checkpoints"
    small().write(run_folder / "epoch=0-step=30.ckpt")
    (run_folder / "epoch=1-step=60.ckpt").write_bytes(torch_file({"w": Tensor("0", (2,))}))
    assert told("latest", tmp_path / "run")["data"]["step"] == 60
    shutil.copytree(saved.checkpoint("accelerate_sharded.2"), tmp_path / "other" / "checkpoint-7")
    assert told("latest", tmp_path / "other")["data"]["step"] == 7


def test_diff(tmp_path: Path) -> None:
    two, four = saved.checkpoint("fsdp2_dcp.2"), saved.checkpoint("fsdp2_dcp.4")
    data = told("diff", two, four, "--values")["data"]
    assert data["same"] == data["tensors"][0] and not data["only_in_a"] and not data["values"]["not_compared"]
    assert {f["key"]: (f["first"], f["second"]) for f in data["facts"]}["world size"] == ("2", "4")
    assert run("diff", two, two, "--exit-code")
    first = small().write(tmp_path / "a")
    other = small()
    other.tensors["model.emb.weight"] = (13, 8)
    other.tensors["model.new"] = (2, 2)
    other.values["step"] = 8
    second = other.write(tmp_path / "b")
    data = told("diff", first, second, "--values", "--exit-code", status=1)["data"]
    assert data["shapes"] == [{"key": "model.emb.weight", "first": "11x8", "second": "13x8"}]
    assert data["only_in_b"] == ["model.new"]
    assert {"key": "step", "first": "7", "second": "8"} in data["entries"]
    assert data["values"]["different"] == []


def test_diff_across_formats() -> None:
    data = told("diff", saved.checkpoint("fsdp2_hf.2"), saved.checkpoint("fsdp2_model.4"), "--values")["data"]
    assert data["same"] == data["values"]["equal"] == 11
    data = told("diff", saved.checkpoint("ddp_raw.2"), saved.checkpoint("fsdp2_model.4"))["data"]
    assert "module." in data["renamed"]


def test_diff_of_a_broken_one_is_incomplete(tmp_path: Path) -> None:
    folder = small().write(tmp_path / "a")
    (folder / ".metadata").unlink()
    assert told("diff", folder, saved.checkpoint("fsdp2_dcp.2"), status=3)["unjudged"]


def test_a_url_is_read_through_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    folder = small().write(tmp_path / "ckpt")
    here, there = read(str(folder)), read(f"file://{folder}")
    assert [(t.key, list(t.chunks)) for t in here.tensors] == [(t.key, list(t.chunks)) for t in there.tensors]
    assert here.world == there.world and here.step == there.step == 7
    assert [p.kind.value for p in read(f"file://{tmp_path}/nowhere").problems] == ["not_found"]
    assert "fsspec does not know" in read("nosuchscheme://x/y").problems[0].detail


def test_every_real_one_is_whole_or_says_why() -> None:
    lossy = ("fsdp1_local_uop_dcp", "fsdp1_raw_optim", "fsdp1_uop_raw_optim")
    for path in sorted(saved.folder().iterdir()):
        if path.name == "damaged":
            continue
        index = read_here(str(path))
        kinds = {p.kind.value for p in index.problems}
        assert kinds == ({"local_slices"} if path.name.startswith(lossy) else set()), (
            path.name,
            index.problems,
        )
        assert not any(g.trust.value in ("dangerous", "unknown") for g in index.globals), path.name
        ranks = int(path.name.rsplit(".", 1)[1])
        whole = path.name.startswith(("full", "safetensors"))
        assert index.world.size == (None if whole else ranks), path.name
