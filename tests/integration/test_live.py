"""A job of four gloo ranks on two agents, as on two hosts: who is elsewhere, by their stacks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from fsdp_doctor.cli.live import look_at
from fsdp_doctor.subjects.stacks import ALL_WAIT, COLLECTIVE, ELSEWHERE, GONE, LOADING, STOPPED, LiveJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]
PROGRAM = Path(__file__).parent / "programs" / "hanging.py"
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass
class Running:
    """Four ranks below two agents."""

    agents: list[subprocess.Popen[bytes]]
    folder: Path

    def tell(self, word: str) -> None:
        (self.folder / word).touch()

    def untell(self, word: str) -> None:
        (self.folder / word).unlink()
        self.steps()

    def steps(self) -> None:
        """Wait until every rank goes on."""
        before = self._at()
        until = time.monotonic() + 60
        while not all(a > b for a, b in zip(self._at(), before, strict=True)):
            assert time.monotonic() < until, "the ranks do not go on"
            assert all(a.poll() is None for a in self.agents)
            time.sleep(0.05)

    def still(self) -> None:
        """Wait until no rank goes on."""
        before = self._at()
        until = time.monotonic() + 60
        while True:
            time.sleep(1.0)
            now = self._at()
            if now == before:
                return
            assert time.monotonic() < until
            before = now

    def _at(self) -> list[int]:
        values = []
        for rank in range(4):
            with contextlib.suppress(OSError, ValueError):
                values.append(int((self.folder / f"at-{rank}").read_text()))
        return [*values, *[-1] * (4 - len(values))]

    def pid(self, rank: int) -> int:
        for agent in self.agents:
            for child in psutil.Process(agent.pid).children(recursive=True):
                if child.environ().get("RANK") == str(rank):
                    return child.pid
        raise AssertionError(f"no process of rank {rank}")

    def look(self, agent: int) -> LiveJob:
        return look_at(str(self.agents[agent].pid), None)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hanging")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = []
    for node in range(2):
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
        words += [f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        agents.append(
            subprocess.Popen(
                [*words, str(PROGRAM), str(folder)],
                env={**os.environ, **QUIET},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    job = Running(agents, folder)
    try:
        job.steps()
        yield job
    finally:
        job.tell("end")
        for agent in agents:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(agent.pid).children(recursive=True):
                    child.kill()
            agent.kill()
            agent.wait(20)


def test_ranks_are_found_below_their_agent(running: Running) -> None:
    job = running.look(1)
    assert [p.rank for p in job.processes] == [2, 3]
    assert [p.local_rank for p in job.processes] == [0, 1]
    assert job.world_size == 4
    assert {p.pid for p in job.processes} == {running.pid(2), running.pid(3)}


def test_one_rank_of_a_job_may_be_named(running: Running) -> None:
    assert [p.rank for p in look_at(str(running.pid(3)), None).processes] == [3]


def test_a_rank_that_sleeps_is_named_with_its_line(running: Running) -> None:
    running.tell("sleep-3")
    running.still()
    job = running.look(1)
    cause = job.conclusions[0]
    assert (cause.kind, cause.ranks, cause.waiting) == (LOADING, (3,), (2,))
    assert "fetch_batch (hanging.py" in cause.words and "time.sleep(0.2)" in cause.words
    assert "all_reduce, called at reduce_gradients" in cause.words
    running.untell("sleep-3")


def test_all_wait_where_the_one_they_wait_for_is_on_another_host(running: Running) -> None:
    running.tell("sleep-3")
    running.still()
    cause = running.look(0).conclusions[0]
    assert (cause.kind, cause.ranks, cause.waiting) == (ALL_WAIT, (), (0, 1))
    assert "2 of 4 ranks are on other hosts" in cause.words
    running.untell("sleep-3")


def test_a_rank_in_an_endless_loop_is_named(running: Running) -> None:
    running.tell("spin-0")
    running.still()
    cause = running.look(0).conclusions[0]
    assert (cause.kind, cause.ranks, cause.waiting) == (ELSEWHERE, (0,), (1,))
    assert "pack_sequences" in cause.words and "it computes" in cause.words
    running.untell("spin-0")


def test_a_loader_is_named_with_what_its_worker_does(running: Running) -> None:
    running.tell("load-1")
    running.still()
    time.sleep(3.0)  # the worker starts
    cause = running.look(0).conclusions[0]
    assert (cause.kind, cause.ranks, cause.waiting) == (LOADING, (1,), (0,))
    assert "called at epoch" in cause.words
    assert "its worker" in cause.words and "__getitem__ (hanging.py" in cause.words
    running.untell("load-1")


def test_the_command_answers_as_of_a_log(running: Running) -> None:
    running.tell("sleep-2")
    running.still()
    done = diagnose(str(running.agents[1].pid), "--format", "json")
    running.untell("sleep-2")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    data = answer["data"]
    assert data["culprit_ranks"] == [2] and data["victims"] == [3]
    assert data["cause"]["code"] == "LOG803" and data["cause"]["confidence"] == "high"
    assert {r["rank"]: r["state"] for r in data["ranks"]} == {2: "running", 3: "waiting"}
    assert data["ranks"][1]["collective"] == "all_reduce"
    assert [g["ranks"] for g in data["live"]["groups"]] == [[2], [3]]
    assert any("hanging.py" in e["file"] for e in data["evidence"])


def diagnose(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fsdp_doctor", "diagnose", "--live", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("999999999",), "there is no process 999999999"),
        (("abc",), "a process id is a number"),
        (("--job", "no-such-job"), "no job no-such-job"),
    ],
)
def test_what_is_no_job_is_said_in_one_line(words: tuple[str, ...], said: str) -> None:
    done = diagnose(*words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_stopped_rank_is_named_with_the_command_that_lets_it_go_on(running: Running) -> None:
    pid = running.pid(2)
    os.kill(pid, signal.SIGSTOP)
    try:
        running.still()
        cause = running.look(1).conclusions[0]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (cause.kind, cause.ranks, cause.waiting) == (STOPPED, (2,), (3,))
    assert cause.command == f"kill -CONT {pid}"
    running.steps()


def test_ranks_that_go_on_are_not_called_stuck(running: Running) -> None:
    kinds = {c.kind for c in running.look(0).conclusions}
    assert not kinds & {STOPPED, GONE}
    assert all(p.threads for p in running.look(0).processes)


def test_a_waiting_rank_stands_in_its_collective(running: Running) -> None:
    running.tell("sleep-1")
    running.still()
    job = running.look(0)
    places = {p.rank: p.place for p in job.processes}
    assert places[0] is not None and places[0].kind == COLLECTIVE
    assert places[0].library is not None and places[0].library.function == "all_reduce"
    running.untell("sleep-1")
