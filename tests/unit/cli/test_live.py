"""`check` on the machine that runs the tests: it ends in time and says what it could not judge."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jsonschema
import pytest

from fsdp_doctor.cli import sources
from tests.unit.cli.conftest import Doctor
from tests.unit.cli.test_check import SCHEMA


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_quick(doctor: Doctor) -> None:
    done = doctor("check", "--profile", "quick", "--format", "json", "--select", "HST,NET")
    jsonschema.validate(done.json, SCHEMA)
    assert done.json["data"]["source"] == {"kind": "live", "path": None, "created": None}
    assert done.json["data"]["profile"] == "quick"
    assert "pass" in {r["status"] for r in done.json["results"]}


def test_a_hung_interpreter_ends_with_the_deadline(doctor: Doctor, tmp_path: Path) -> None:
    hang = script(tmp_path / "python", "exec sleep 300")
    began = time.monotonic()
    done = doctor("check", "--python", hang, "--deadline", "4", "--format", "json", "--select", "ENV,HST")
    assert time.monotonic() - began < 30
    assert (done.status, done.json["verdict"]) in ((3, "incomplete"), (1, "fail"))
    assert any(str(hang) in u for u in done.json["unjudged"]), done.json["unjudged"]
    assert done.json["seconds"] < 10


def test_an_import_that_takes_longer_is_not_judged(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(300)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = doctor("check", "--deadline", "8", "--format", "json", "--select", "ENV011")
    assert (done.status, done.json["verdict"]) == (3, "incomplete")
    assert [r["status"] for r in done.json["results"]] == ["skip"]


@pytest.mark.parametrize("text", ["exit 3", "echo hello", "kill -9 $$"])
def test_a_broken_interpreter_is_not_judged(doctor: Doctor, tmp_path: Path, text: str) -> None:
    broken = script(tmp_path / "python", text)
    done = doctor("check", "--python", broken, "--format", "json", "--select", "ENV")
    assert (done.status, done.json["verdict"]) == (3, "incomplete")
    assert [str(broken) in u for u in done.json["unjudged"]] == [True]


def test_checkpoint_folder(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor("check", "--ckpt", tmp_path, "--format", "json", "--select", "STO")
    assert done.json["unjudged"] == []
    assert "pass" in {
        r["status"] for r in done.json["results"] if r["code"] in ("STO001", "STO002", "STO003")
    }


def test_another_system_says_what_it_cannot_see(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.sys, "platform", "darwin")
    done = doctor("check", "--select", "VAR")
    assert "This is macOS" in done.out
    assert "check --from RECORDING" in " ".join(done.out.split())


def test_interpreter_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "mypython", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert sources.interpreter("mypython") == str(mine)
    assert sources.interpreter(sys.executable) == sys.executable
    monkeypatch.chdir(tmp_path)
    assert sources.interpreter("./mypython") == str(mine)
