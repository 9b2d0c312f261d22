"""Whether a command joins other ranks, and what it says where it cannot."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

import click
import pytest

from fsdp_doctor.cli.join_options import Joining, place
from fsdp_doctor.cli.progress import shown
from fsdp_doctor.ranks.context import Alone, Context
from fsdp_doctor.ranks.ports import PORTS
from tests.support.ranks import LAUNCHERS, ROOT, clean_environment, free_port, results

RANK = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in tuple(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


def under(monkeypatch: pytest.MonkeyPatch, **env: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def test_nobody_to_join() -> None:
    assert place(Joining(), launched=False) == Alone("no launcher set a rank and a world size")
    with pytest.raises(click.UsageError, match="--ranks join: no launcher"):
        place(Joining("join"), launched=False)


def test_a_rank_joins_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, **RANK)
    assert isinstance(place(Joining(), launched=False), Context)
    assert place(Joining("off"), launched=False) == Alone("--ranks off")


def test_variables_of_a_pod_are_none_of_a_rank_where_a_launcher_is_yet_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under(monkeypatch, **RANK)
    assert isinstance(place(Joining(), launched=True), Alone)
    assert isinstance(place(Joining("join"), launched=True), Context)
    under(monkeypatch, TORCHELASTIC_RUN_ID="job")
    assert isinstance(place(Joining(), launched=True), Context)


def test_a_job_whose_rank_0_nobody_names(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, RANK="1", WORLD_SIZE="2")
    found = place(Joining(), launched=False)
    assert isinstance(found, Alone) and found.wanted
    with pytest.raises(click.UsageError, match="MASTER_ADDR is not set"):
        place(Joining("join"), launched=False)


def doctor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fsdp_doctor", *words],
        cwd=ROOT, env=clean_environment() | env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_rank_0_without_a_free_port_says_which_are_taken() -> None:
    port = free_port()
    with ExitStack() as held:
        for number in range(port, port + PORTS):
            one = held.enter_context(socket.socket())
            one.bind(("", number))
            one.listen()
        done = doctor("check", "--select", "HST001", **{**RANK, "RANK": "0", "MASTER_PORT": str(port)})
    assert done.returncode == 3 and done.stdout == ""
    assert f"none of the ports {port} to {port + PORTS - 1} is free" in done.stderr
    assert "--ranks off" in done.stderr


def test_rank_0_that_nobody_comes_to() -> None:
    import json

    port = str(free_port())
    job = {**RANK, "RANK": "0", "MASTER_PORT": port}
    done = doctor(
        "check", "--format", "json", "--select", "HST001,RNK", "--wait", "0.2", "--deadline", "40", **job
    )
    report = json.loads(done.stdout)
    assert done.returncode == 1
    (missing,) = [r for r in results(report, "RNK001") if r["status"] == "fail"]
    assert "rank 1 is missing: 1 of 2 ranks reported" in missing["found"]
    assert any("--ranks off" in n for n in report["data"]["notes"])
    alone = doctor("check", "--format", "json", "--select", "RNK001", "--ranks", "off", **job)
    assert [r["status"] for r in results(json.loads(alone.stdout), "RNK001")] == ["skip"]


def test_nothing_is_shown_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("gathering [bold] ranks"):
        pass
    assert capsys.readouterr().err == ""
