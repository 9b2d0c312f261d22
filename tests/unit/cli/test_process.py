"""How the process behaves towards its terminal, its pipes and its signals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.unit.cli.conftest import finish, start

HEAVY = ("torch", "rich", "psutil", "pynvml", "yaml", "packaging", "fsdp_doctor.checks", "fsdp_doctor.facts")


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("check", "--no-such")])
def test_light_commands_import_little(arguments: tuple[str, ...]) -> None:
    code = f"import sys; from fsdp_doctor.cli.main import run; run({list(arguments)!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    modules = done.stderr.splitlines()[-1].split()
    heavy = HEAVY if arguments == ("--help",) else ("torch", "psutil", "pynvml")
    assert not [m for m in modules if m in heavy]


def test_help_names_exit_codes_and_commands() -> None:
    done = finish("--help")
    said = done.stdout.decode()
    assert done.returncode == 0
    assert all(
        word in said for word in ("check", "record", "list", "explain", "table", "at least one check failed")
    )


def test_version_names_tables() -> None:
    said = finish("--version").stdout.decode().splitlines()
    assert re.match(r"fsdp-doctor \d+\.\d+\.\d+ \(Python ", said[0])
    assert said[1].startswith("plug-in")
    assert any(re.fullmatch(r"table xid checked on 20\d\d-\d\d(-\d\d)?", line) for line in said)


@pytest.mark.parametrize("arguments", [("table",), ("--help",), ("list", "--format", "json"), ("check",)])
def test_reader_that_leaves(arguments: tuple[str, ...], healthy: Path) -> None:
    if arguments == ("check",):
        arguments = ("check", "--from", str(healthy))
    read, write = os.pipe()
    child = start(*arguments, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")


def test_head_takes_one_line(sick: Path) -> None:
    child = start("check", "--from", sick, "--format", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    head = subprocess.run(["head", "-1"], stdin=child.stdout, capture_output=True, timeout=60, check=True)
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert (head.stdout, child.stderr.read(), child.wait(60)) == (b"{\n", b"", 1)
    child.stderr.close()


def test_closed_stdout(healthy: Path) -> None:
    command = f'exec "{sys.executable}" -m fsdp_doctor check --from "{healthy}" >&- 2>&-'
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run(["sh", "-c", command], timeout=60, env=env, check=False).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk(sick: Path) -> None:
    with open("/dev/full", "wb") as full:
        child = start("check", "--from", sick, stdout=full, stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err.count(b"\n")) == (3, 1)
    assert b"cannot write the output: No space left on device" in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-16"])
def test_other_encodings(sick: Path, encoding: str) -> None:
    done = finish("check", "--from", sick, "--verbose", env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.decode(encoding).isascii()


def test_c_locale(sick: Path) -> None:
    plain = {"LANG": "C", "LC_ALL": "", "LC_CTYPE": "", "PYTHONIOENCODING": ""}
    assert finish("check", "--from", sick, env=plain).stdout.isascii()
    utf8 = finish("check", "--from", sick, env={**plain, "LANG": "C.UTF-8"}).stdout
    assert "✗" in utf8.decode()


def terminal(*argv: object, env: dict[str, str] | None = None) -> str:
    """What a person sees at a terminal of 60 columns."""
    master, slave = pty.openpty()
    plain = {"TERM": "xterm", "COLUMNS": "60", **(env or {})}
    child = start(*argv, stdout=slave, stderr=slave, env=plain)
    os.close(slave)
    said = b""
    until = time.monotonic() + 60
    while time.monotonic() < until and select.select([master], [], [], 60)[0]:
        try:
            said += os.read(master, 65536)
        except OSError:
            break
    os.close(master)
    child.wait(60)
    return said.decode()


def test_colour_only_where_it_is_wanted(sick: Path) -> None:
    assert "\x1b[1;31mFAIL" in terminal("check", "--from", sick)
    for arguments, env in ((("--no-color",), {}), ((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"})):
        said = terminal("check", "--from", sick, *arguments, env=env).split("fsdp-doctor ", 1)[1]
        assert "\x1b[1;31m" not in said
    assert b"\x1b" not in finish("check", "--from", sick, env={"TERM": "xterm"}).stdout


def test_narrow_terminal_loses_nothing(sick: Path) -> None:
    done = finish("check", "--from", sick, "--verbose", env={"COLUMNS": "40"})
    wide = finish("check", "--from", sick, "--verbose", env={"COLUMNS": "120"})

    def letters(raw: bytes) -> str:
        said = re.sub(r"\d+\.\d s|\\\n", "", raw.decode())
        return re.sub(r"[\s:\\]", "", said)

    assert letters(done.stdout) == letters(wide.stdout)
    assert (
        max(len(line) for line in done.stdout.decode().splitlines() if "$" not in line and "/" not in line)
        <= 40
    )


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGINT, 130, b"fsdp-doctor: interrupted\n"),
        (signal.SIGTERM, 143, b"fsdp-doctor: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, b"fsdp-doctor: ended by SIGHUP\n"),
    ],
)
def test_a_signal_ends_it_and_its_children(
    tmp_path: Path, number: signal.Signals, status: int, words: bytes
) -> None:
    hang, note = tmp_path / "python", tmp_path / "pid"
    hang.write_text(f"#!/bin/sh\necho $$ > {note}.new; mv {note}.new {note}\nexec sleep 60\n")
    hang.chmod(0o755)
    child = start(
        *("check", "--python", hang),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # nohup and `&` hand on ignored ones
    )
    until = time.monotonic() + 60
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.05)
    inner = int(note.read_text())
    time.sleep(1)
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (status, b"", words)
    with pytest.raises(ProcessLookupError):
        os.kill(inner, 0)


@pytest.mark.parametrize("arguments", [("--help",), ("check", "--help"), ("--version",)])
def test_help_on_a_full_disk(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        child = start(*arguments, stdout=full, stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (
        3,
        b"fsdp-doctor: error: cannot write the output: No space left on device\n",
    )


def test_output_into_the_standard_output_by_name(sick: Path) -> None:
    done = finish("check", "--from", sick, "--format", "json", "--output", "/dev/stdout")
    assert done.returncode == 1 and json.loads(done.stdout)["verdict"] == "fail"


def test_a_removed_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def run(arguments: str) -> subprocess.CompletedProcess[bytes]:
        gone.mkdir(exist_ok=True)
        command = f'cd "{gone}" && rmdir "{gone}" && exec "{sys.executable}" -m fsdp_doctor {arguments}'
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.run(["sh", "-c", command], timeout=60, env=env, capture_output=True, check=False)

    done = run("table")
    assert (done.returncode, done.stderr) == (0, b"")
    done = run("check --profile quick --ckpt relative")
    said = b"fsdp-doctor: error: the current folder was removed: change to one that exists\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", said)


def test_modules_of_the_working_folder_are_not_taken_for_others(sick: Path, tmp_path: Path) -> None:
    for name in ("json", "torch", "yaml", "psutil", "select", "dataclasses"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')")
    for name in ("checks", "doctor", "click", "rich"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name}')")
    for arguments in (("check", "--from", sick), ("check", "--profile", "quick", "--select", "ENV,GPU")):
        done = finish(*arguments, cwd=tmp_path)
        assert b"the wrong" not in done.stdout + done.stderr
        assert b"fsdp-doctor" in done.stdout, done.stderr
