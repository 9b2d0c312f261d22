"""Stacks of a real process, by py-spy and by the hook, and what is said where neither is allowed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdp_doctor.diagnosis.live import faulthandler_stacks, pyspy
from fsdp_doctor.diagnosis.live.pyspy import dump, parse
from fsdp_doctor.process import Outcome

PROGRAM = """
import time
def wait_here():
    print("ready", flush=True)
    while True: time.sleep(0.1)
wait_here()
"""


@contextlib.contextmanager
def running(**variables: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env={**os.environ, **variables}
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_py_spy_sees_where_a_process_is() -> None:
    with running() as pid:
        found = dump(pid)
    main = next(t for t in found.threads if t.main)
    assert [f.function for f in main.frames][:2] == ["<module>", "wait_here"], "the innermost is last"


def test_a_process_that_is_gone() -> None:
    with running() as pid:
        pass
    found = dump(pid)
    assert not found.threads and found.problem


def test_without_py_spy_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: None)
    found = dump(os.getpid())
    assert found.problem == "py-spy is not installed" and "fsdp-doctor[live]" in (found.remedy or "")


@pytest.mark.parametrize(
    "told",
    [
        "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
        "Error: Failed to suspend process\n\nCaused by:\n    EPERM: Operation not permitted",
        "Operation not permitted (os error 1)",
    ],
)
def test_without_rights_the_command_that_gives_them(told: str) -> None:
    found = pyspy._refusal(Outcome(1, b"", told.encode()), 77, "/bin/py-spy")
    assert "not allowed to look into process 77" in (found.problem or "") and found.remedy


def test_another_failure_is_said_in_py_spys_words() -> None:
    found = pyspy._refusal(
        Outcome(1, b"", b"Error: Failed to find python version from target process\n"), 7, "x"
    )
    assert "Failed to find python version" in (found.problem or "") and found.remedy is None


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[1]", b'[{"frames": 3}]', b"[" * 100000, b'[{"frames": [5, null]}]']
)
def test_answers_of_another_form(raw: bytes) -> None:
    assert not any(t.frames for t in parse(raw))


HOOKED = Path(faulthandler_stacks.__file__).parents[1] / "recording" / "hook"


def test_the_hook_answers_without_any_rights(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    variables = {"PYTHONPATH": str(HOOKED), "FSDP_DOCTOR_RUN": str(tmp_path), "RANK": "0"}
    with running(**variables) as pid:
        assert faulthandler_stacks.listens(pid)
        found = faulthandler_stacks.ask(pid, tmp_path)
        again = faulthandler_stacks.ask(pid, tmp_path)
        time.sleep(0.1)
        assert Path(f"/proc/{pid}").exists(), "it lives on"
    main = next(t for t in found if t.main)
    assert [f.function for f in main.frames][:2] == ["<module>", "wait_here"]
    assert len(again) == len(found), "each answer is read alone"


def test_a_process_that_does_not_listen_is_not_signalled(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    with running() as pid:
        (tmp_path / "stacks" / f"faulthandler-{os.uname().nodename}-{pid}.txt").touch()
        assert not faulthandler_stacks.listens(pid)
        assert faulthandler_stacks.ask(pid, tmp_path) == ()
        assert Path(f"/proc/{pid}").exists()


def test_what_faulthandler_writes() -> None:
    text = (
        "Thread 0x00007f01 [fsdp-doctor] (most recent call first):\n"
        '  File "/x/sitecustomize.py", line 9 in serve\n\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        '  File "/home/me/train.py", line 41 in step\n'
        '  File "/home/me/train.py", line ??? in <module>\n'
    )
    own, main = faulthandler_stacks.parse(text)
    assert own.name == "fsdp-doctor" and not own.main and main.main
    assert [(f.function, f.line) for f in main.frames] == [("<module>", None), ("step", 41)]
