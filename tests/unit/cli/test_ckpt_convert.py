"""`ckpt convert` as it is called; and every conversion that `ckpt check` advises, carried out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fixtures.checkpoints.questions import Question, questions
from fixtures.checkpoints.saved import checkpoint, index
from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.ckpt.reading import read_here
from fsdp_doctor.subjects.load_target import LoadApi, LoadTarget
from fsdp_doctor.subjects.loading import Effect, Obstacle
from tests.unit.cli.conftest import Doctor

pytestmark = pytest.mark.timeout(60)


@cache
def advised() -> dict[str, tuple[Question, Obstacle]]:
    """Each command that is advised for any question of the table, with one question that gets it."""
    found: dict[str, tuple[Question, Obstacle]] = {}
    for question in questions():
        cell = question.cell
        for obstacle in assess(index(cell.save, cell.damage), question.target).obstacles:
            if obstacle.command and " ckpt convert " in obstacle.command:
                found.setdefault(obstacle.command, (question, obstacle))
    return found


def target_of(question: Question) -> LoadTarget:
    """What loads the converted one: of files per rank nobody asks any more."""
    api = question.target.load_api
    return replace(question.target, load_api=None if api is LoadApi.PER_RANK else api)


def test_advice_is_given_for_many_kinds() -> None:
    kinds = {" ".join(shlex.split(c)[5:]) for c in advised()}
    assert {
        "--to dcp",
        "--to merge-metadata",
        "--to dcp --strip-prefix module.",
        "--to dcp --model-only",
    } <= kinds
    assert len(advised()) > 20


@pytest.mark.parametrize("number", range(40))
def test_advised_conversion_works(number: int, doctor: Doctor) -> None:
    found = sorted(advised())
    if number >= len(found):
        return
    command = found[number]
    question, obstacle = advised()[command]
    words = shlex.split(command)
    target = Path(words[4])
    shutil.rmtree(target, ignore_errors=True)
    try:
        done = doctor(*words[1:])
        assert done.status == 0, done.err
        answer = assess(read_here(str(target)), target_of(question))
        left = [o for o in answer.obstacles if o.cause is obstacle.cause]
        assert not [o for o in left if o.effect in (Effect.FAILS, Effect.WRONG, Effect.SAME_SETUP)], left
    finally:
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)


def test_no_advice_for_what_cannot_be_converted(doctor: Doctor) -> None:
    for name in ("fsdp1_local_files.4", "full_legacy.2", "megatron.2"):
        done = doctor("ckpt", "check", checkpoint(name), "--world-size", "2", "--format", "json")
        assert done.json["data"]["conversion"] is None


def test_json_and_text(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(
        "ckpt",
        "convert",
        checkpoint("fsdp2_dcp.4"),
        tmp_path / "out",
        "--to",
        "safetensors",
        "--format",
        "json",
    )
    data = done.json["data"]
    assert done.status == 0 and data["tensors"] == 11 and data["from"] == "dcp"
    assert data["left_out"] == ["optim (42)", "step"]
    assert (tmp_path / "out" / "model.safetensors").is_file()
    again = doctor("ckpt", "convert", checkpoint("fsdp2_dcp.4"), tmp_path / "out", "--to", "safetensors")
    assert again.status == 2 and "--overwrite" in again.err
    words = ("--to", "safetensors", "--overwrite", "--dtype", "bfloat16")
    over = doctor("ckpt", "convert", checkpoint("fsdp2_dcp.4"), tmp_path / "out", *words)
    assert over.status == 0 and "cast to bfloat16" in over.out
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "dcp", "--max-shard-size", "big"), "no size such as 5GB"),
        (("--to", "merge-metadata", "--dtype", "float32"), "takes no other option"),
        (("--to", "zip"), "'zip' is not one of"),
        ((), "Missing option '--to'"),
    ],
)
def test_bad_calls(words: tuple[str, ...], said: str, doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("ckpt", "convert", checkpoint("fsdp2_dcp.4"), tmp_path / "out", *words)
    assert done.status == 2 and said in done.err and "Traceback" not in done.err


def test_source_must_be_there_and_apart(doctor: Doctor, tmp_path: Path) -> None:
    source = checkpoint("fsdp2_dcp.4")
    assert "no such file" in doctor("ckpt", "convert", tmp_path / "no", tmp_path / "o", "--to", "dcp").err
    assert "the same" in doctor("ckpt", "convert", source, source, "--to", "torch").err
    assert "within SRC" in doctor("ckpt", "convert", source, source / "out", "--to", "torch").err


@pytest.mark.parametrize("damage", ["shard_missing", "shard_truncated", "metadata_truncated", "no_metadata"])
def test_damage_is_one_line(damage: str, doctor: Doctor, tmp_path: Path) -> None:
    from fixtures.checkpoints.damages import DAMAGES

    name = damage if damage in DAMAGES else next(d for d in DAMAGES if "metadata" in d)
    source = tmp_path / "src"
    shutil.copytree(checkpoint("fsdp2_dcp.4"), source)
    DAMAGES[name](source)
    done = doctor("ckpt", "convert", source, tmp_path / "out", "--to", "torch")
    assert done.status == 1 and len(done.err.strip().splitlines()) == 1, done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


def test_hostile_pickle_is_not_run(doctor: Doctor, tmp_path: Path) -> None:
    import pickle
    import zipfile

    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {canary}",)

    with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"w": Payload()}, protocol=2))
        archive.writestr("m/version", "3\n")
    done = doctor("ckpt", "convert", tmp_path / "m.pt", tmp_path / "out.pt", "--to", "torch")
    assert done.status == 1 and "system" in done.err and not canary.exists()
    assert not (tmp_path / "out.pt").exists()


def test_full_disk_is_one_line_and_goes_on(doctor: Doctor, tmp_path: Path) -> None:
    script = f"ulimit -f 4; exec {shlex.quote(os.sys.executable)} -m fsdp_doctor ckpt convert "
    words = [str(checkpoint("fsdp2_dcp.4")), str(tmp_path / "out.pt"), "--to", "torch"]
    done = subprocess.run(
        ["bash", "-c", script + shlex.join(words)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out.pt").exists()
    assert doctor("ckpt", "convert", *words).status == 0
    assert json.dumps([p.name for p in tmp_path.iterdir()]) == '["out.pt"]'
