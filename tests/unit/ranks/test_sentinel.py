"""Files in the checkpoint folder that come, are seen, and always go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp_doctor.ranks.sentinel import SCRIPT, Sentinel

NAMES = [f".fsdp-doctor-{'0' * 32}-{i}" for i in range(3)]


def until(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def test_two_hosts_see_each_other(tmp_path: Path) -> None:
    one, two = Sentinel(str(tmp_path), NAMES[0]), Sentinel(str(tmp_path), NAMES[1])
    try:
        assert one.written(until()) and two.written(until())
        assert one.seen(NAMES[:2], until()) == tuple(NAMES[:2])
        assert two.seen(NAMES, until()) == tuple(NAMES[:2])
    finally:
        one.close()
        two.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_their_own_are_not_shared(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = Sentinel(str(tmp_path / "a"), NAMES[0]), Sentinel(str(tmp_path / "b"), NAMES[1])
    try:
        assert one.written(until()) and two.written(until())
        assert one.seen(NAMES[:2], until()) == (NAMES[0],)
        assert two.seen(NAMES[:2], until()) == (NAMES[1],)
    finally:
        one.close()
        two.close()


def test_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    one = Sentinel(str(tmp_path / "run-17" / "step-0"), NAMES[0])
    try:
        assert one.written(until())
        assert [p.name for p in tmp_path.iterdir()] == [NAMES[0]]
    finally:
        one.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / NAMES[0]).write_text("mine")
    one = Sentinel(str(tmp_path), NAMES[0])
    try:
        assert not one.written(until())
        assert one.error == "File exists"
    finally:
        one.close()
    assert (tmp_path / NAMES[0]).read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written() -> None:
    one = Sentinel("/proc/self", NAMES[0])
    try:
        assert not one.written(until())
        assert one.error
    finally:
        one.close()


def test_the_file_goes_when_the_rank_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from fsdp_doctor.ranks.sentinel import Sentinel\n"
        f"s = Sentinel({str(tmp_path)!r}, {NAMES[0]!r}); s.written(time.monotonic() + 20)\n"
        "print('there', flush=True); time.sleep(60)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None and rank.stdout.readline() == b"there\n"
        assert (tmp_path / NAMES[0]).exists()
        rank.send_signal(signal.SIGKILL)
        rank.wait(10)
        end = until(10)
        while (tmp_path / NAMES[0]).exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        rank.kill()
        rank.wait()
        if rank.stdout is not None:
            rank.stdout.close()


@pytest.mark.parametrize("line", ["nonsense", '{"a": 1}', '["../../etc/passwd"]', "[1, null]"])
def test_the_child_ends_clean_whatever_it_is_told(tmp_path: Path, line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "5", str(tmp_path), NAMES[0]],
        input=line + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.startswith('{"written": true}')
    assert "passwd" not in done.stdout
    assert list(tmp_path.iterdir()) == []
