"""Real children that hang, flood, crash, fork and refuse to die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fsdp_doctor.process import Child, Outcome, process_state, run, start

ROOT = Path(__file__).resolve().parents[2]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-c", code, *arguments]


def wait_until(true: object, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_answers() -> None:
    outcome = run(["sh", "-c", "echo out; echo err >&2"], 30)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, b"out\n", b"err\n")
    assert outcome.ok and outcome.problem is None


def test_environment_is_replaced() -> None:
    assert run(["/usr/bin/env"], 30, env={"ONLY": "this"}).stdout == b"ONLY=this\n"


def test_has_no_standard_input() -> None:
    assert run(python("import sys; print(repr(sys.stdin.read()))"), 30).stdout == b"''\n"


def test_program_that_is_not_there() -> None:
    outcome = run(["/nonexistent/program"], 30)
    assert outcome.returncode is None and not outcome.ok
    assert outcome.problem == "could not be started: No such file or directory"


def test_exit_status_and_last_words() -> None:
    outcome = run(["sh", "-c", "echo first >&2; echo 'no such GPU' >&2; exit 7"], 30)
    assert outcome.problem == "exit status 7: no such GPU"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_ended_by_a_signal(number: signal.Signals) -> None:
    outcome = run(python(f"import os; os.kill(os.getpid(), {int(number)})"), 30)
    assert outcome.returncode == -number
    assert outcome.problem == f"ended by {number.name}"


def test_hangs() -> None:
    with start(["sleep", "60"]) as child:
        outcome = child.result(0.2)
        assert outcome.timed_out and not outcome.abandoned and outcome.returncode == -signal.SIGTERM
        assert child.pid is not None and gone(child.pid)


def test_what_was_said_before_the_deadline_is_kept() -> None:
    outcome = run(python("import time; print('stage 1', flush=True); time.sleep(60)"), 2)
    assert outcome.timed_out and outcome.stdout == b"stage 1\n"


def test_ignores_the_polite_signal() -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    outcome = run(python(code), 2)
    assert outcome.stdout == b"ready\n"
    assert outcome.timed_out and outcome.returncode == -signal.SIGKILL


def test_stopped_child_is_ended() -> None:
    outcome = run(python("import os; os.kill(os.getpid(), 19)"), 0.5)
    assert outcome.timed_out and outcome.returncode == -signal.SIGKILL


def test_grandchild_of_the_group_does_not_survive() -> None:
    outcome = run(["sh", "-c", "sleep 60 & echo $!"], 30)
    assert outcome.ok
    assert wait_until(lambda: gone(int(outcome.stdout)) or process_state(int(outcome.stdout)) == "Z")


def test_grandchild_with_the_pipe_is_not_waited_for() -> None:
    outcome = run(["sh", "-c", "setsid sleep 30 & echo $!"], 20)
    os.kill(int(outcome.stdout), signal.SIGKILL)
    assert outcome.ok and outcome.seconds < 20


def test_flood_is_bounded() -> None:
    outcome = run(["sh", "-c", "yes & yes >&2"], 1, stdout_limit=1000, stderr_limit=500)
    assert outcome.timed_out and outcome.truncated
    assert (len(outcome.stdout), len(outcome.stderr)) == (1000, 500)


def test_more_output_than_a_pipe_holds() -> None:
    outcome = run(python("import sys; sys.stdout.write('x' * 3_000_000)"), 30)
    assert outcome.ok and len(outcome.stdout) == 3_000_000 and not outcome.truncated


def test_tail_of_errors_is_kept() -> None:
    outcome = run(
        python("import sys; [print(i, file=sys.stderr) for i in range(9999)]"), 30, stderr_limit=100
    )
    assert len(outcome.stderr) == 100 and outcome.stderr.endswith(b"9998\n")


def test_closes_its_output_early() -> None:
    code = "import os, time; os.write(1, b'a'); os.close(1); os.close(2); time.sleep(0.3); os._exit(5)"
    outcome = run(python(code), 30)
    assert (outcome.returncode, outcome.stdout) == (5, b"a")


def test_several_at_once_share_the_time() -> None:
    children = [start(["sleep", "1"]) for _ in range(5)]
    outcomes = [c.result(30) for c in children]
    assert all(o.ok for o in outcomes)
    assert sum(o.seconds for o in outcomes) > 4  # each one's own time, not what was left of it


def test_leaving_the_block_ends_the_child() -> None:
    with start(["sleep", "60"]) as child:
        assert wait_until(lambda: child.pid is not None)
    assert child.pid is not None and wait_until(lambda: gone(child.pid or 0))


PARENT = """
import sys, time
from fsdp_doctor.process import start
child = start([sys.executable, "-I", "-c", "import time; print(1, flush=True); time.sleep(600)"])
while child.pid is None or not child._out:
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(600)
"""


@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_child_ends_with_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(number)
        parent.wait(20)
        assert wait_until(lambda: gone(pid) or process_state(pid) in ("Z", None))
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


@LINUX
def test_child_outlives_the_thread_that_asked_for_it() -> None:
    made: list[Child] = []
    thread = threading.Thread(
        target=lambda: made.append(start(python("import time; time.sleep(0.5); print(7)")))
    )
    thread.start()
    thread.join()
    assert made[0].result(30).stdout == b"7\n"


@LINUX
def test_children_start_while_other_threads_work() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            import json

            json.loads(json.dumps([{}] * 100))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    try:
        children = [start(["/bin/echo", str(i)]) for i in range(60)]
        assert [c.result(60).stdout for c in children] == [f"{i}\n".encode() for i in range(60)]
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_interrupted_waiting_ends_the_child() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fsdp_doctor.process import start\n"
        "import time; c = start(['sleep', '60'])\n"
        "while not c.pid: time.sleep(0.01)\n"
        "print(c.pid, flush=True); c.result(60)"
    )
    with subprocess.Popen(python(code, str(ROOT)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tool:
        assert tool.stdout is not None
        pid = int(tool.stdout.readline())
        tool.send_signal(signal.SIGINT)
        assert tool.wait(20) != 0
    assert wait_until(lambda: gone(pid))


def test_no_zombie_and_no_open_file_stays() -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(5):
        run(["true"], 30)
        run(["/nonexistent/program"], 30)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


# A child that cannot be reaped: it is traced by a process of another session, so that its end is reported
# to the tracer alone. For its parent that is the same as a child that the kernel does not let die.
UNDYING = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
me = os.getpid()
go, ready = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    os.setsid()
    os.read(go[0], 1)
    ok = libc.ptrace(0x4206, me, 0, 0) == 0  # PTRACE_SEIZE
    os.write(ready[1], b"y" if ok else b"n")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2): os.dup2(null, fd)
    time.sleep(40)
    os._exit(0)
libc.prctl(0x59616D61, pid, 0, 0, 0)  # PR_SET_PTRACER
os.write(go[1], b"g")
print(pid, os.read(ready[0], 1).decode(), flush=True)
time.sleep(60)
"""


def undying(child: Child) -> tuple[Outcome, int]:
    outcome = child.result(2)
    pid, traced = outcome.stdout.split()
    if traced != b"y":
        pytest.skip("tracing is not allowed here")
    return outcome, int(pid)


@LINUX
def test_child_that_does_not_die_is_left_behind_and_reaped_later() -> None:
    child = start(python(UNDYING))
    outcome, tracer = undying(child)
    try:
        assert outcome.abandoned and outcome.timed_out and outcome.returncode is None
        assert outcome.state is not None
        assert "cannot be killed" in (outcome.problem or "")
    finally:
        os.kill(tracer, signal.SIGKILL)
    assert wait_until(lambda: gone(child.pid or 0))


@LINUX
def test_end_of_the_tool_is_not_held_up() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fsdp_doctor.process import run\n"
        "o = run([sys.executable, '-I', '-c', sys.argv[2]], 2)\n"
        "print(o.abandoned, *o.stdout.decode().split())"
    )
    shell = ["sh", "-c", '"$@" | cat', "sh", *python(code, str(ROOT), UNDYING)]
    done = subprocess.run(shell, check=False, capture_output=True, timeout=30, text=True)
    abandoned, tracer, traced = done.stdout.split()
    os.kill(int(tracer), signal.SIGKILL)
    if traced != "y":
        pytest.skip("tracing is not allowed here")
    assert abandoned == "True"


# posix_spawn waits for its child, in state D, until that has started; here it never finishes opening a pipe.
UNINTERRUPTIBLE = """
import os, sys
os.mkfifo(sys.argv[1])
print("spawning", flush=True)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, sys.argv[1], os.O_RDONLY, 0)])
"""


@LINUX
def test_child_in_uninterruptible_sleep(tmp_path: Path) -> None:
    with start(python(UNINTERRUPTIBLE, str(tmp_path / "fifo"))) as child:
        if not wait_until(lambda: process_state(child.pid) == "D"):
            pytest.skip("this C library does not spawn through vfork")
        outcome = child.result(0.1)
    assert outcome.timed_out and outcome.stdout == b"spawning\n"
    assert wait_until(lambda: gone(child.pid or 0))
