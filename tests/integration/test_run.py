"""`run` around real commands: status, signals, output, hangs, and what is kept."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.timeout(150)]
PROGRAM = Path(__file__).parent / "programs" / "hanging.py"
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
OWN = ("TORCH", "NCCL_", "PET_", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONPATH")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This one, without what bears on the settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OWN)}
    root = str(Path(__file__).parents[2])
    return {**kept, **QUIET, "PYTHONPATH": root, **(more or {})}


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `run` that a test kills leaves its named pipes there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def words(out: Path, command: Sequence[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "fsdp_doctor", "run", "--out", str(out), *options, "--", *command]


@dataclass
class Done:
    status: int
    out: bytes
    err: str
    folder: Path

    def manifest(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / "run.json").read_text())
        return found

    def events(self) -> list[dict[str, object]]:
        file = self.folder / "journal" / f"{socket.gethostname()}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]


def run(tmp_path: Path, command: Sequence[str], *options: str, env: Mapping[str, str] | None = None) -> Done:
    out = tmp_path / "run"
    done = subprocess.run(
        words(out, command, *options), env=environment(env), capture_output=True, timeout=120, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr.decode(), out)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_status_is_the_commands(tmp_path: Path, status: int) -> None:
    assert run(tmp_path, python(f"raise SystemExit({status})")).status == status


def test_a_command_that_a_signal_ended(tmp_path: Path) -> None:
    done = run(tmp_path, python("import os; os.kill(os.getpid(), 9)"))
    assert done.status == 137 and done.manifest()["status"] == -9


def test_no_such_program(tmp_path: Path) -> None:
    done = run(tmp_path, ["no-such-program"])
    assert done.status == 127 and "no program 'no-such-program'" in done.err
    assert "Traceback" not in done.err


def test_output_is_the_commands_own(tmp_path: Path) -> None:
    code = "import os; os.write(1, b'a\\xff\\r50%\\n'); os.write(2, b'problem\\n'); os.write(1, b'end')"
    done = run(tmp_path, python(code))
    assert done.out == b"a\xff\r50%\nend"
    assert "problem\n" in done.err
    kept = (done.folder / "console.log").read_bytes()
    assert b"a\xff\r50%\n" in kept and b"problem\n" in kept and b"end\n" in kept


def test_much_output_comes_through_whole(tmp_path: Path) -> None:
    done = run(tmp_path, python("import sys\nfor i in range(200000): sys.stdout.write(f'line {i}\\n')"))
    assert done.out.count(b"\n") == 200000 and done.out.endswith(b"line 199999\n")
    assert (done.folder / "console.log").read_bytes() == done.out


def test_standard_input_reaches_the_command(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write(sys.stdin.read()[::-1])"
    done = subprocess.run(
        words(tmp_path / "run", python(code)),
        env=environment(),
        input=b"abc",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"cba"


def test_a_child_left_behind_is_not_waited_for(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(p.pid, flush=True)"
    )
    began = time.monotonic()
    done = run(tmp_path, python(code))
    with contextlib.suppress(psutil.Error):
        psutil.Process(int(done.out)).kill()
    assert done.status == 0 and time.monotonic() - began < 45


def test_variables_reach_the_command_and_are_kept(tmp_path: Path) -> None:
    code = "import os, json; print(json.dumps({k: os.environ.get(k) for k in ('TORCH_FR_BUFFER_SIZE', 'NCCL_DEBUG')}))"
    done = run(tmp_path, python(code), env={"NCCL_DEBUG": "INFO"})
    given = json.loads(done.out)
    assert given["NCCL_DEBUG"] == "INFO"
    variables = done.manifest()["variables"]
    assert isinstance(variables, dict)
    assert variables["NCCL_DEBUG"] == {"value": "INFO", "set_by": "user"}
    assert "NCCL_DEBUG" in done.err


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    command = [*python("print('HF_TOKEN=hf_abcdefghijklmnopqrst')"), "--token", "hf_abcdefghijklmnopqrst"]
    done = run(tmp_path, command, env={"NCCL_SECRET_TOKEN": "hunter2hunter2hunter2"})
    kept = b"".join(p.read_bytes() for p in done.folder.rglob("*") if p.is_file())
    assert b"hf_abcdef" not in kept and b"hunter2" not in kept
    assert b"hf_abcdef" in done.out


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path, python("print(1)"))
    done = run(tmp_path, python("print(2)"))
    assert done.status == 2 and "holds another run" in done.err and done.out == b""


def test_the_programs_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.THEIRS = 5\n")
    done = run(
        tmp_path,
        python("print(THEIRS)"),
        env={"RANK": "0", "PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parents[2]}"},
    )
    assert done.out == b"5\n"


def test_an_exception_fills_the_file_that_torchrun_named(tmp_path: Path) -> None:
    error = tmp_path / "error.json"
    done = run(
        tmp_path,
        python("raise ValueError('no label')"),
        env={"RANK": "0", "TORCHELASTIC_ERROR_FILE": str(error)},
    )
    message = json.loads(error.read_text())["message"]
    assert done.status == 1 and message["message"] == "ValueError: no label"
    assert (
        "raise ValueError" in message["extraInfo"]["py_callstack"]
        or "line 1" in message["extraInfo"]["py_callstack"]
    )


def test_a_program_that_a_rank_starts_is_no_rank(tmp_path: Path) -> None:
    error = tmp_path / "error.json"
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'raise ValueError'])"
    done = run(tmp_path, python(inner), env={"RANK": "0", "TORCHELASTIC_ERROR_FILE": str(error)})
    assert done.status == 0 and not error.exists()


def test_the_commands_options_are_its_own_without_dashes(tmp_path: Path) -> None:
    own = [sys.executable, "-m", "fsdp_doctor", "run", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--format", "x", "-h"]
    done = subprocess.run([*own, *command], env=environment(), capture_output=True, timeout=60, check=False)
    assert done.stdout == b"['--format', 'x', '-h']\n"


def test_tasks_of_srun_are_diagnosed_together(tmp_path: Path) -> None:
    """Two tasks that each start a rank, with srun's variables: one fails."""
    code = "import os; assert os.environ['SLURM_PROCID'] != '1', 'no label in shard 1'"
    for number in (0, 1):
        variables = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        done = run(tmp_path, python(code), env=variables)
        assert done.status == number and "fsdp-doctor diagnose" in done.err
    words = [sys.executable, "-m", "fsdp_doctor", "diagnose", "--format", "json", str(tmp_path / "run")]
    answer = subprocess.run(words, env=environment(), capture_output=True, timeout=60, check=False)
    assert json.loads(answer.stdout)["data"]["culprit_ranks"] == [1]


def test_no_hook(tmp_path: Path) -> None:
    done = run(tmp_path, python("import os; print(os.environ.get('FSDP_DOCTOR_RUN'))"), "--no-hook")
    assert done.out == b"None\n"


@contextlib.contextmanager
def started(tmp_path: Path, command: Sequence[str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        words(tmp_path / "run", command, *options),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate(timeout=20)


HANDLER = """
import signal, sys, time
def heard(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(7)
for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP): signal.signal(n, heard)
print('ready', flush=True)
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_is_passed_on_once(tmp_path: Path, name: str) -> None:
    with started(tmp_path, python(HANDLER)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == f"{name}\n".encode()
        assert process.wait(60) == 7
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["signals"] == [name]


def test_ctrl_c_of_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal sends it to the whole group, and `run` must not pass it on again."""
    count = HANDLER.replace("sys.exit(7)", "pass").replace(
        "time.sleep(0.1)", "time.sleep(0.1); print('.', flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        command = words(tmp_path / "run", python(count))
        os.execvpe(command[0], command, environment())
    said = b""
    try:
        until = time.monotonic() + 60
        while b"ready" not in said and time.monotonic() < until:
            said += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        after = b""
        while after.count(b".") < 12 and time.monotonic() < until:
            after += os.read(terminal, 4096)
        assert after.count(b"SIGINT") == 1, after
    finally:
        for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
            with contextlib.suppress(psutil.Error):
                process.kill()
        os.waitpid(pid, 0)
        os.close(terminal)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Three ranks under torchrun, of which one sleeps: `run` ends them once it has looked."""
    folder = tmp_path_factory.mktemp("hung")
    (folder / "sleep-1").touch()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    command += [str(PROGRAM), str(folder)]
    return run(folder, command, "--hang-after", "6", "--stop-on-hang")


@pytest.mark.slow
def test_a_hang_is_said_with_its_rank(hung: Done) -> None:
    assert "no rank moves: rank 1 loads data in fetch_batch" in hung.err.replace("\n", " ")
    manifest = hung.manifest()
    assert manifest["hangs"] == 1 and manifest["stopped_by_run"] is True
    assert hung.status != 0


@pytest.mark.slow
def test_stacks_of_all_ranks_are_there(hung: Done) -> None:
    stacks = {p.name.split(".")[0]: p.read_text() for p in (hung.folder / "stacks").glob("rank_*.txt")}
    assert set(stacks) == {"rank_0", "rank_1", "rank_2"}
    assert "fetch_batch" in stacks["rank_1"] and "all_reduce" in stacks["rank_2"]


@pytest.mark.slow
def test_recorders_of_all_ranks_are_there_though_gloo_writes_none(hung: Done) -> None:
    dumps = {p.name: pickle.loads(p.read_bytes()) for p in (hung.folder / "flight").iterdir()}
    assert set(dumps) == {"rank_0", "rank_1", "rank_2"}
    last = {n: max((e["collective_seq_id"] for e in d["entries"]), default=0) for n, d in dumps.items()}
    assert last["rank_0"] == last["rank_2"] == last["rank_1"] + 1
    frames = dumps["rank_0"]["entries"][-1]["frames"]
    assert "reduce_gradients" in {f["name"] for f in frames}


@pytest.mark.slow
def test_the_diagnosis_names_the_rank(hung: Done) -> None:
    data = json.loads((hung.folder / "diagnosis.json").read_text())["data"]
    assert data["culprit_ranks"] == [1] and data["cause"]["row"] in ("nccl", "slow")
    assert "rank 1" in hung.err.lower()


@pytest.mark.slow
def test_the_journal_has_the_ranks(hung: Done) -> None:
    beats = [e for e in hung.events() if e["event"] == "beat"]
    last = beats[-1]["ranks"]
    assert isinstance(last, list) and {r["rank"] for r in last} == {0, 1, 2}
    assert [e["event"] for e in hung.events() if e["event"] != "beat"] == [
        "started",
        "hang",
        "stopping",
        "ended",
    ]


@pytest.mark.slow
def test_nothing_is_left_behind(hung: Done) -> None:
    assert not [p for p in psutil.process_iter() if _below(p, hung.folder)]
    assert not list(hung.folder.rglob("*.part"))


def _below(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("FSDP_DOCTOR_RUN") == str(folder)
    except (psutil.Error, OSError):
        return False
