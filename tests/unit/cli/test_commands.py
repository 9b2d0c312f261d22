"""list, explain, table, record, and what every command has in common."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import jsonschema
import pytest

from fsdp_doctor.cli import main as entry
from fsdp_doctor.cli import otherwise
from fsdp_doctor.cli.ckpt import group
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.failure_table import FAILURE_TABLE
from fsdp_doctor.findings import Row
from fsdp_doctor.report import json as as_json
from tests.unit.cli.conftest import Doctor

SCHEMA = json.loads(as_json.schema())


def test_short_helps_agree(doctor: Doctor) -> None:
    for name, (_, line) in entry.COMMANDS.items():
        command = entry.cli.get_command(entry.cli.make_context("x", ["table"]), name)
        assert command is not None
        assert (command.name, command.short_help) == (name, line)
        done = doctor(name, "--help")
        assert (done.status, done.err) == (0, "")
        if isinstance(command, click.Group):
            for below, (_, said) in group.COMMANDS.items():
                part = command.get_command(click.Context(command), below)
                assert part is not None and (part.name, part.short_help) == (below, said)
                assert "--format" in doctor(name, below, "--help").out
            continue
        for option in ("--format", "--output", "--select", "--ignore", "--verbose", "--no-color", "--config"):
            assert option in done.out, (name, option)


def test_no_command_and_unknown_command(doctor: Doctor) -> None:
    done = doctor()
    assert (done.status, done.out, "Usage:" in done.err) == (2, "", True)
    done = doctor("chek")
    assert (done.status, done.err.splitlines()[0]) == (
        2, "fsdp-doctor: error: no command 'chek'; did you mean 'check'?",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plan", "dryrun --plan-only"),
        ("Wrap_Plan", "dryrun --plan-only"),
        ("oom", "explain oom"),
        ("mem002", "explain MEM002"),
        ("convert", "ckpt convert"),
        ("ckpt verify", "ckpt inspect --verify"),
    ],
)
def test_what_users_try_is_told_by_its_name(doctor: Doctor, words: str, meant: str) -> None:
    done = doctor(*words.split())
    said = f"no command {words.split()[-1]!r}; that is `fsdp-doctor {meant}`"
    assert (done.status, done.err.splitlines()[0]) == (2, f"fsdp-doctor: error: {said}")


def test_what_is_told_exists(doctor: Doctor) -> None:
    helps = {name: doctor(name, "--help").out for name in entry.COMMANDS}
    helps |= {f"ckpt {name}": doctor("ckpt", name, "--help").out for name in group.COMMANDS}
    groups = ((otherwise.COMMANDS, entry.COMMANDS, ""), (otherwise.CHECKPOINTS, group.COMMANDS, "ckpt "))
    for words, known, before in groups:
        for word, line in words.items():
            assert word not in known
            told = before + line.format(word)
            if not told.startswith("-"):
                name = max((n for n in helps if told == n or told.startswith(f"{n} ")), key=len)
                assert all(
                    part in helps[name] for part in told.split() if part.startswith("--") and part != "--"
                )


@pytest.mark.parametrize("arguments", [("list",), ("table",), ("explain", "nccl"), ("explain", "gpu001")])
def test_json_follows_the_schema(doctor: Doctor, arguments: tuple[str, ...]) -> None:
    done = doctor(*arguments, "--format", "json")
    jsonschema.validate(done.json, SCHEMA)
    assert (done.status, done.json["verdict"], done.json["command"]) == (0, "pass", arguments[0])


def test_list(doctor: Doctor) -> None:
    told = doctor("list", "--format", "json", "--select", "GPU", "--ignore", "GPU001").json["data"]["checks"]
    assert [c["code"] for c in told] == [c.code for c in registry().checks]
    assert {c["code"] for c in told if c["selected"]} == {
        c.code for c in registry().checks if c.family == "GPU" and c.code != "GPU001"
    }
    said = doctor("list", "--ignore", "GPU001").out
    assert [c.code for c in registry().checks if c.code not in said] == ["GPU001"]
    assert f"{len(registry().checks) - 1} selected (--verbose lists the others)" in said
    said = doctor("list", "--ignore", "GPU001", "--verbose").out
    assert all(c.code in said for c in registry().checks)
    assert said.count("(not selected)") == 1
    assert doctor("list", "--select", "XYZ").status == 2


@pytest.mark.parametrize("check", registry().checks, ids=lambda c: c.code)
def test_explain_every_check(doctor: Doctor, check: object) -> None:
    code = check.code  # type: ignore[attr-defined]
    done = doctor("explain", code.lower())
    squeezed = re.sub(r"\s", "", done.out)
    told = check.documentation  # type: ignore[attr-defined]
    assert done.status == 0
    for text in (code, told.title, told.what, told.why, told.fix, told.sources):
        assert re.sub(r"\s", "", text) in squeezed


@pytest.mark.parametrize("row", list(Row))
def test_explain_every_row(doctor: Doctor, row: Row) -> None:
    done = doctor("explain", row.value.upper())
    assert done.status == 0
    assert all(c.code in done.out for c in registry().checks if c.row is row)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("ncl", "did you mean 'nccl'?"),
        ("GPU01", "did you mean 'GPU0"),
        ("gpu", "`fsdp-doctor list --select GPU` names its checks"),
        ("zzz", "rows: nccl, oom"),
    ],
)
def test_explain_unknown(doctor: Doctor, word: str, hint: str) -> None:
    done = doctor("explain", word)
    assert (done.status, done.out) == (2, "")
    assert hint in done.err


def test_table(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    said = doctor("table").out
    assert max(map(len, said.splitlines())) <= 40
    for row in FAILURE_TABLE:
        assert re.sub(r"\s", "", row.adds) in re.sub(r"\s", "", said)
    assert len(doctor("table", "--format", "json").json["data"]["rows"]) == 7
    assert doctor("table", "--format", "markdown").out.count("\n") == 9


def test_record_and_judge(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "a-very-secret-value")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    out = tmp_path / "machine.zip"
    done = doctor("record", out, "--format", "json", "--deadline", "30")
    jsonschema.validate(done.json, SCHEMA)
    assert done.status == 0
    assert done.json["data"]["redacted"].get("env.json", 0) >= 1
    assert done.json["data"]["path"] == str(out)
    again = doctor("record", out)
    assert (again.status, "exists" in again.err) == (2, True)
    told = doctor("check", "--from", out, "--format", "json")
    assert told.status in (0, 1)
    assert not [r for r in told.json["results"] if r["code"] == "RNK001" and r["status"] == "fail"]
    assert told.json["data"]["ranks"]["missing"] == []


def test_record_into_nothing(doctor: Doctor) -> None:
    done = doctor("record", "/none/x.zip")
    assert (done.status, "there is no folder /none" in done.err) == (2, True)


def test_internal_error_is_one_line(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("evil \x1b[31m\nsecond line")

    monkeypatch.setattr("fsdp_doctor.report.catalogue.table_text", broken)
    done = doctor("table")
    assert done.status == 3
    assert done.err == (
        "fsdp-doctor: internal error: RuntimeError: evil \\x1b[31m second line; "
        "run with --verbose for the traceback\n"
    )
    assert "Traceback" in doctor("table", "--verbose").err
