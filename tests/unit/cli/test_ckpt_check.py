"""`ckpt check` as it is called, and `check --ckpt`, on checkpoints that torch wrote."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from fixtures.checkpoints.saved import checkpoint
from tests.unit.cli.conftest import Doctor


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS",
    ):
        monkeypatch.delenv(name, raising=False)


def check(doctor: Doctor, name: str, *words: object, damage: str = "") -> dict[str, object]:
    done = doctor("ckpt", "check", checkpoint(name, damage), "--format", "json", *words)
    assert done.status == {"pass": 0, "warn": 0, "fail": 1, "incomplete": 3}[done.json["verdict"]], done.err
    return done.json


@pytest.mark.parametrize(
    ("name", "ranks", "verdict", "report"),
    [
        ("fsdp2_dcp.4", 4, "yes", "pass"),
        ("fsdp2_dcp.4", 2, "yes_reshard", "pass"),
        ("fsdp2_files.4", 4, "yes_same_setup", "warn"),
        ("fsdp2_files.4", 2, "no", "fail"),
        ("full.2", 16, "yes_convert_api", "pass"),
        ("fsdp2_app.4", 4, "yes_warn", "warn"),
        ("fsdp1_narrow.4", 4, "depends_on_api", "warn"),
        ("ddp_raw.2", 2, "no", "fail"),
    ],
)
def test_answers(doctor: Doctor, name: str, ranks: int, verdict: str, report: str) -> None:
    told = check(doctor, name, "--world-size", ranks)
    assert (told["data"]["verdict"], told["verdict"]) == (verdict, report)
    assert told["data"]["target_world_size"] == ranks
    if verdict == "depends_on_api":
        assert set(told["data"]["by_api"].values()) == {"yes", "no"}
    if verdict == "no":
        assert told["data"]["messages"] and told["data"]["conversion"]


def test_text_has_the_answer_and_the_message(doctor: Doctor) -> None:
    done = doctor("ckpt", "check", checkpoint("fsdp1_local_files.4"), "--world-size", "2", "--no-color")
    assert done.status == 1
    words = " ".join(done.out.split())
    assert "fsdp1_local_per_rank, saved on 4; loads on 2 ranks: no" in words
    assert 'torch says "Local world size at save time was 4, but at load time was 2"' in words


def test_ranks_of_the_job_and_of_a_launch_command(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    here = check(doctor, "fsdp2_dcp.4", "--api", "fsdp2")["data"]
    assert (here["verdict"], here["target_world_size"]) == ("yes_reshard", 8)
    launch = ("--", "torchrun", "--nnodes", "2", "--nproc-per-node", "2", "train.py")
    launched = check(doctor, "fsdp2_dcp.4", *launch)["data"]
    assert (launched["verdict"], launched["world_size_from"]) == ("yes", "the launch command")
    assert check(doctor, "fsdp2_dcp.4", "--world-size", 2, *launch)["data"]["target_world_size"] == 2


def test_without_ranks_what_does_not_depend_on_them_is_answered(doctor: Doctor) -> None:
    assert check(doctor, "fsdp2_dcp.4")["data"]["verdict"] == "yes"
    assert check(doctor, "fsdp2_files.4")["data"]["verdict"] == "yes_same_setup"
    assert check(doctor, "fsdp2_dcp.4", damage="missing_shard")["data"]["verdict"] == "no"


def test_a_job_file_and_flags_over_it(doctor: Doctor, tmp_path: Path) -> None:
    job = tmp_path / "run.yaml"
    job.write_text("world_size: 2\napi: fsdp2\nload-api: raw\nprimed: true\n")
    told = check(doctor, "fsdp2_raw_optim.4", "--job", job)["data"]
    assert (told["verdict"], told["load_api"]) == ("yes_warn", "raw")
    over = check(doctor, "fsdp2_raw_optim.4", "--job", job, "--load-api", "state_dict")["data"]
    assert (over["verdict"], over["load_api"]) == ("no", "state_dict")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("world_size: many", "whole number"),
        ("ranks: 4", "unknown ranks"),
        ("- 4", "names and values"),
        ("a: [", "no YAML"),
        ("api: fsdp3", "fsdp3"),
        ("partial: 1", "true or false"),
    ],
)
def test_job_files_that_cannot_be_used(doctor: Doctor, tmp_path: Path, text: str, words: str) -> None:
    job = tmp_path / "run.yaml"
    job.write_text(text)
    done = doctor("ckpt", "check", checkpoint("full.2"), "--job", job)
    assert done.status == 2
    assert words in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("/no/such/path",),
        ("--world-size", "0"),
        ("--model-args", "[]", "--model", "x.py:f"),
        ("--api", "fsdp4"),
        ("--", "make", "coffee"),
    ],
)
def test_mistakes_are_one_line(doctor: Doctor, words: tuple[str, ...]) -> None:
    path = () if words[0].startswith("/") else (checkpoint("full.2"),)
    done = doctor("ckpt", "check", *path, *words)
    assert done.status == 2
    assert done.err.count("\n") <= 3 and "Traceback" not in done.err


def test_the_model_is_compared(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    from fixtures.checkpoints.questions import model
    from fsdp_doctor.ckpt import model as built

    shape = {"layers": 3, "vocab": 11, "tied": False, "narrow": False, "dtype": "float32", "frozen": False}
    monkeypatch.setattr(built, "ask", lambda *given: model(shape))
    told = check(doctor, "fsdp2_dcp.4", "--world-size", 2, "--model", "net.py:build")
    assert told["data"]["verdict"] == "no"
    assert "Missing key in checkpoint state_dict: model.blocks.2.ln.weight." in told["data"]["messages"]
    assert {r["code"] for r in told["results"] if r["status"] == "fail"} == {"CKP041"}


def test_a_flipped_bit_is_found_by_verify(doctor: Doctor) -> None:
    told = check(doctor, "fsdp2_dcp.4", "--world-size", 2, "--verify", damage="flipped_byte")
    assert told["data"]["verdict"] == "no"
    assert "CKP010" in {r["code"] for r in told["results"] if r["status"] == "fail"}


def test_what_a_pickle_names_is_not_run(doctor: Doctor, tmp_path: Path) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "ckpt"
    shutil.copytree(checkpoint("fsdp2_dcp.4"), folder)

    class Touch:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, (f"touch {canary}",)

    (folder / ".metadata").write_bytes(pickle.dumps(Touch()))
    done = doctor("ckpt", "check", folder, "--world-size", "4", "--format", "json")
    assert (done.status, done.json["data"]["verdict"]) == (1, "no")
    assert done.json["data"]["reasons"][0]["cause"] == "unsafe"
    assert not canary.exists()


def test_check_judges_the_newest_whole_one(doctor: Doctor, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(checkpoint("fsdp2_files.4"), run / "step-10")
    shutil.copytree(checkpoint("fsdp2_dcp.4", "missing_shard"), run / "step-20")
    words = ("check", "--profile", "quick", "--select", "CKP", "--format", "json", "--ckpt", run)
    done = doctor(*words, "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert done.json["data"]["ckpt"]["verdict"] == "no"
    assert done.json["data"]["ckpt"]["path"] == str(run / "step-10")
    found = {r["code"]: r["status"] for r in done.json["results"]}
    assert (found["CKP020"], found["CKP090"]) == ("fail", "warn")
    assert len([r for r in done.json["results"] if r["code"] == "CKP001"]) == 1
    fewer = doctor(*words, "--nproc", "4")
    assert fewer.json["data"]["ckpt"]["verdict"] == "yes_same_setup"


def test_check_says_nothing_of_an_empty_folder(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(
        "check", "--profile", "quick", "--select", "CKP", "--format", "json", "--ckpt", tmp_path, "--nproc", 2
    )
    assert done.status == 0
    assert {r["status"] for r in done.json["results"]} == {"skip"}
    assert "ckpt" not in done.json["data"]


def test_data_are_json_values(doctor: Doctor) -> None:
    told = check(doctor, "fsdp1_local_uop_dcp.4", "--world-size", 4)["data"]
    assert json.loads(json.dumps(told)) == told
    assert {"verdict", "by_api", "reasons", "messages", "conversion", "format", "world_size"} <= set(told)
