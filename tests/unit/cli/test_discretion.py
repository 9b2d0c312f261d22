"""Reports show no secret, whoever brought it: the environment, the launch command, a machine's answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_doctor.cli.discretion import discreet
from fsdp_doctor.findings import Evidence, Fix, Report, Result, Row, Status, Subject
from fsdp_doctor.report.json import render
from tests.unit.cli.conftest import Doctor

SECRETS = {
    "HF_TOKEN": "hf_abcdefghijklmnop1234",
    "WANDB_API_KEY": "0123456789abcdef0123",
    "DATABASE_URL": "postgres://user:pass4word9word@db/x",
}
WORDS = ("hf_abcdefghijklmnop1234", "0123456789abcdef0123", "pass4word9word")


def report(result: Result, **data: object) -> Report:
    return Report("check", (result,), {"version": "1"}, "2026-01-01T00:00:00+00:00", 1.0, data)


def result(**changes: object) -> Result:
    plain = Result("GPU001", "title", Row.START, Status.FAIL, Subject(), "found", "expected", "why")
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
def test_secrets_of_the_environment_are_hidden_wherever_they_stand() -> None:
    said = f"a process train.py {WORDS[1]} holds GPU 3"
    told = render(
        discreet(
            report(
                result(
                    found=said,
                    expected=said,
                    fix=Fix("Stop it", f"kill {WORDS[0]}"),
                    evidence=(Evidence("/proc", f"run --url {SECRETS['DATABASE_URL']}"),),
                    subject=Subject(path=f"/mnt/{WORDS[1]}", device=WORDS[0]),
                ),
                notes=[said],
                fixes=[{"output": said}],
            )
        )
    )
    assert not [w for w in WORDS if w in told]
    assert "holds GPU 3" in told and "kill <redacted>" in told


def test_words_of_a_command_belong_together() -> None:
    command = [
        "env",
        "A_TOKEN=abcdefgh1234567",
        "torchrun",
        "train.py",
        "--api-key",
        "zyxwvut98765",
        "--lr",
        "1",
    ]
    told = discreet(report(result(), launch={"command": command})).data["launch"]
    assert told == {
        "command": [
            "env",
            "A_TOKEN=<redacted>",
            "torchrun",
            "train.py",
            "--api-key",
            "<redacted>",
            "--lr",
            "1",
        ]
    }


def test_a_text_without_end_is_cut() -> None:
    told = discreet(report(result(found="x" * 1_000_000, fix=Fix("Do", "y" * 1_000_000))))
    assert told.results[0].found == "x" * 8000 + "… (1000000 characters)"
    assert len(render(told)) < 20_000


def test_a_plain_report_is_left_as_it_is() -> None:
    plain = report(
        result(found="NCCL_IB_PKEY=0x8001 on mlx5_0", subject=Subject(gpu=(0, 3), rank=1)),
        n=[1, 2.5, None, True],
    )
    assert discreet(plain) == plain


@pytest.mark.usefixtures("secrets")
def test_a_launch_command_in_every_format(doctor: Doctor) -> None:
    for form in ("text", "json", "junit", "github"):
        done = doctor(
            "check", "--profile", "quick", "--select", "VAR,HST", "--format", form, "--verbose",
            "--", "env", "MY_SECRET=s3cr3ts3cr3ts3cr3t", "torchrun", "--nproc-per-node=2", "t.py", WORDS[1],
        )  # fmt: skip
        assert not [w for w in (*WORDS, "s3cr3ts3cr3ts3cr3t") if w in done.out + done.err], form
