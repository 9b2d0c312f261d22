"""`check --from`: verdicts, formats, selection, suppressions, what was named and not judged."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import jsonschema
import pytest

from fixtures import machines
from fsdp_doctor.report import json as as_json
from tests.unit.cli.conftest import Doctor

SCHEMA = json.loads(as_json.schema())


def test_healthy(doctor: Doctor, healthy: Path) -> None:
    done = doctor("check", "--from", healthy, "--format", "json")
    jsonschema.validate(done.json, SCHEMA)
    assert (done.status, done.err) == (0, "")
    assert done.json["verdict"] in ("pass", "warn")
    assert done.json["data"]["source"]["kind"] == "recording"


def test_sick(doctor: Doctor, sick: Path) -> None:
    done = doctor("check", "--from", sick, "--format", "json")
    jsonschema.validate(done.json, SCHEMA)
    assert (done.status, done.json["verdict"]) == (1, "fail")
    (failed,) = [r for r in done.json["results"] if r["status"] == "fail"]
    assert failed["subject"]["gpu"] == 5
    assert {"pass", "skip"} <= {r["status"] for r in done.json["results"]}


@pytest.mark.parametrize("form", ["text", "json", "junit", "github"])
def test_formats_agree(doctor: Doctor, sick: Path, form: str) -> None:
    done = doctor("check", "--from", sick, "--format", form)
    assert done.status == 1
    assert "remap" in done.out
    assert "\x1b" not in done.out


def test_zip_is_the_same(doctor: Doctor, sick: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "r"), "zip", sick)
    assert zipfile.is_zipfile(archive)
    told = [doctor("check", "--from", p, "--format", "json").json["results"] for p in (sick, archive)]
    assert [(r["code"], r["found"]) for r in told[0]] == [(r["code"], r["found"]) for r in told[1]]


def test_selection(doctor: Doctor, sick: Path) -> None:
    done = doctor("check", "--from", sick, "--format", "json", "--select", "gpu,NET001", "--ignore", "GPU01")
    codes = {r["code"] for r in done.json["results"]}
    assert "NET001" in codes
    assert "GPU001" in codes
    assert not {c for c in codes if c.startswith(("GPU01", "HST"))}
    assert done.status == 0


def test_strict(doctor: Doctor, job: Path) -> None:
    assert doctor("check", "--from", job, "--select", "LNK016").status == 0
    done = doctor("check", "--from", job, "--select", "LNK016", "--strict")
    assert (done.status, "--strict counts" in done.out) == (1, True)


def test_suppression(doctor: Doctor, sick: Path, tmp_path: Path) -> None:
    code = next(
        r["code"]
        for r in doctor("check", "--from", sick, "--format", "json").json["results"]
        if r["status"] == "fail"
    )
    (tmp_path / "fsdp-doctor.toml").write_text(f'[[suppress]]\ncode = "{code}"\nreason = "spare node"\n')
    done = doctor("check", "--from", sick, "--format", "json")
    assert done.status == 0
    assert "spare node" in {r["suppressed"] for r in done.json["results"]}
    text = doctor("check", "--from", sick).out
    assert f"SUPPRESSED  {code}" in text
    (tmp_path / "fsdp-doctor.toml").write_text(
        f'[[suppress]]\ncode = "{code}"\nreason = "x"\nuntil = 2020-01-01\n'
    )
    done = doctor("check", "--from", sick)
    assert done.status == 1 and f"the suppression of {code} (x) ended on 2020-01-01" in done.out
    (tmp_path / "fsdp-doctor.toml").write_text('[[suppress]]\ncode = "GPX001"\nreason = "x"\n')
    done = doctor("check", "--from", sick)
    assert (done.status, "'GPX001' is the code of no check (nearest: GP" in done.err) == (2, True)


def test_command_line_beats_configuration(doctor: Doctor, sick: Path, tmp_path: Path) -> None:
    (tmp_path / "fsdp-doctor.toml").write_text('format = "json"\nselect = "NET"\nstrict = true\n')
    assert {r["code"][:3] for r in doctor("check", "--from", sick).json["results"]} == {"NET"}
    done = doctor("check", "--from", sick, "--format", "text", "--select", "HST001", "--no-strict")
    assert "HST 1" in done.out
    other = tmp_path / "other.toml"
    other.write_text('select = ["STO"]\n')
    assert "STO" in doctor("check", "--from", sick, "--config", other).out


def test_ranks_are_merged(doctor: Doctor, job: Path) -> None:
    told = doctor("check", "--from", job, "--format", "json", "--select", "HST").json
    shm = [r for r in told["results"] if r["code"] == "HST001" and r["status"] in ("fail", "warn")]
    assert [r["subject"] for r in shm] == [{"host": "node-b", "rank": [2, 3], "path": "/dev/shm"}]
    assert told["data"]["ranks"] == {"world_size": 4, "recorded": [0, 1, 2, 3], "missing": []}
    assert told["data"]["hosts"] == ["node-a", "node-b"]
    passed = [r["subject"]["rank"] for r in told["results"] if r["code"] == "HST004"]
    assert passed == [[0, 1, 2, 3]]


def test_missing_and_broken_ranks(doctor: Doctor, job: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(job, copy, symlinks=True)
    shutil.rmtree(copy / "ranks" / "1")
    told = doctor("check", "--from", copy, "--format", "json").json
    assert told["data"]["ranks"]["missing"] == [1]
    assert any(r["code"] == "RNK001" and r["subject"]["rank"] == 1 for r in told["results"])
    (copy / "ranks" / "2" / "manifest.json").write_text("{")
    done = doctor("check", "--from", copy, "--format", "json", "--select", "NET001")
    assert (done.status, done.json["verdict"]) == (3, "incomplete")
    assert [u.startswith("rank 2: ") for u in done.json["unjudged"]] == [True]


def test_deadline_always_answers(doctor: Doctor, job: Path) -> None:
    done = doctor("check", "--from", job, "--format", "json", "--deadline", "0.001")
    jsonschema.validate(done.json, SCHEMA)
    assert (done.status, done.json["verdict"]) == (3, "incomplete")
    assert "the deadline came" in done.json["unjudged"][0]
    assert {r["status"] for r in done.json["results"]} == {"skip"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--script", "none.py"), "--script none.py: No such file"),
        (("--", "make", "train"), "launch command: 'make' is no launcher"),
        (("make", "train", "--nproc", "3"), "launch command: 'make'"),
    ],
)
def test_named_and_not_judged(doctor: Doctor, healthy: Path, arguments: tuple[str, ...], words: str) -> None:
    done = doctor("check", "--from", healthy, "--format", "json", *arguments)
    assert (done.status, done.json["verdict"]) == (3, "incomplete")
    assert any(u.startswith(words) for u in done.json["unjudged"]), done.json["unjudged"]


def test_launch_command_is_read(doctor: Doctor, sick: Path) -> None:
    done = doctor(
        "check", "--from", sick, "--format", "json", "torchrun", "--nproc-per-node", "9", "train.py"
    )
    assert done.json["data"]["launch"]["nproc_per_node"] == 9
    assert any(r["status"] == "fail" and r["code"] == "GPU006" for r in done.json["results"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "/none"), "no such file or folder"),
        (("--from", "."), "not a recording"),
        (("--select", "NOPE"), "starts with 'NOPE'"),
        (("--select", "GPU", "--ignore", "GPU"), "leave no check"),
        (("--format", "yaml"), "'yaml' is not one of"),
        (("--nproc", "0"), "--nproc"),
        (("--deadline", "0"), "--deadline"),
        (("--deadline", "nan"), "nan is no number of seconds"),
        (("--yes",), "--yes belongs to --fix"),
        (("--python", "/none/python"), "no such file"),
        (("--python", "."), "is a folder"),
        (("--output", "/none/x.json"), "there is no folder /none"),
        (("--output", "."), "is a folder"),
        (("--config", "none.toml"), "none.toml: No such file"),
        (("--nprok", "1"), "No such option"),
    ],
)
def test_bad_invocations(doctor: Doctor, arguments: tuple[str, ...], words: str) -> None:
    done = doctor("check", *arguments)
    lines = done.err.splitlines()
    assert (done.status, done.out, len(lines)) == (2, "", 2), done
    assert words in lines[0]
    assert lines[0].startswith("fsdp-doctor: error: ")
    assert lines[1] == "hint: 'fsdp-doctor check --help' shows the usage"


@pytest.mark.parametrize("arguments", [("--fix",), ("--python", "python3"), ("--ckpt", "relative")])
def test_what_a_recording_cannot_have(doctor: Doctor, healthy: Path, arguments: tuple[str, ...]) -> None:
    assert doctor("check", "--from", healthy, *arguments).status == 2


def test_checkpoint_of_the_recorded_machine(doctor: Doctor, job: Path) -> None:
    told = doctor(
        "check", "--from", job, "--ckpt", "/mnt/ckpt", "--format", "json", "--select", "STO001"
    ).json
    assert {r["status"] for r in told["results"]} == {"pass"}
    assert told["unjudged"] == []


def test_output_names_that_lead_nowhere(doctor: Doctor, sick: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in (tmp_path / "loop", tmp_path / ("x" * 300)):
        done = doctor("check", "--from", sick, "--output", name)
        assert (done.status, done.out) == (2, "")
        assert done.err.startswith(f"fsdp-doctor: error: --output {name}: ")


def test_a_world_beyond_belief_is_no_recording(doctor: Doctor, healthy: Path, tmp_path: Path) -> None:
    shutil.copytree(healthy, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "rank": 0, "world_size": 2_000_000_000}))
    done = doctor("check", "--from", tmp_path / "copy")
    assert done.status == 2 and "world_size is not a count from 0 to 1048576" in done.err


def test_ranks_with_one_reason_are_one_line(doctor: Doctor, healthy: Path, tmp_path: Path) -> None:
    shutil.copytree(healthy, tmp_path / "copy")
    for number in range(1, 40):
        (tmp_path / "copy" / "ranks" / str(number)).mkdir(parents=True)
    told = doctor("check", "--from", tmp_path / "copy", "--format", "json").json
    assert told["unjudged"] == ["ranks 1-39: no manifest.json: not a recording"]


def test_output_file(doctor: Doctor, sick: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(0o640)
    done = doctor("check", "--from", sick, "--format", "json", "--output", target)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("fail: 1 failed")
    assert json.loads(target.read_text())["verdict"] == "fail"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    doctor("check", "--from", sick, "--output", link)
    assert link.is_symlink()
    assert target.read_text().startswith("fsdp-doctor ")
    assert doctor("check", "--from", sick, "--output", "/dev/null").status == 1


# ------------------------------------------------------------------------- several machines' recordings
@pytest.fixture
def boxes(tmp_path: Path) -> list[Path]:
    """Recordings of two machines that knew nothing of each other; the second has another torch."""
    made = []
    for number, host in enumerate(("node-a", "node-b")):
        machine = machines.job_node(host, f"10.30.0.{11 + number}/24")
        if number:
            machine.stack = machines.stack("2.12.1", gpus=2)
        machine.write(tmp_path / host)
        made.append(tmp_path / host)
    return made


def test_recordings_of_several_machines_are_one_job(doctor: Doctor, boxes: list[Path]) -> None:
    done = doctor("check", "--from", boxes[0], "--from", boxes[1], "--format", "json")
    assert done.json["data"]["ranks"] == {"world_size": 2, "recorded": [0, 1], "missing": []}
    (differs,) = [r for r in done.json["results"] if r["code"] == "RNK002"]
    assert (differs["status"], differs["subject"]["host"]) == ("fail", "node-b")
    assert done.status == 1 and any("order of --from" in n for n in done.json["data"]["notes"])


def test_a_whole_job_is_not_judged_with_another(doctor: Doctor, boxes: list[Path], job: Path) -> None:
    done = doctor("check", "--from", boxes[0], "--from", job)
    assert done.status == 2 and "holds a whole job already" in done.err
    done = doctor("check", "--from", boxes[0], "--from", boxes[0].parent / "none.zip")
    assert done.status == 2 and "none.zip" in done.err


def test_ranks_that_the_recordings_name_are_kept(doctor: Doctor, boxes: list[Path]) -> None:
    for rank, box in ((3, boxes[0]), (1, boxes[1])):
        manifest = json.loads((box / "manifest.json").read_text()) | {"rank": rank, "world_size": 4}
        (box / "manifest.json").write_text(json.dumps(manifest))
    done = doctor("check", "--from", boxes[0], "--from", boxes[1], "--format", "json")
    assert done.json["data"]["ranks"] == {"world_size": 4, "recorded": [1, 3], "missing": [0, 2]}
    assert [r["status"] for r in done.json["results"] if r["code"] == "RNK001"] == ["fail"]
