"""Children with a deadline: whatever may hang or crash runs here, and cannot take the doctor with it.

A child gets a session of its own, no standard input and pipes that nobody else holds. At its deadline its
whole group is ended; one that the kernel does not let die is left behind, with the place where it waits. On
Linux a child ends with the doctor, however the doctor ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from fsdp_doctor.process_binding import bound_to
from fsdp_doctor.process_outcome import Outcome, process_state, wait_channel

__all__ = ["Child", "Outcome", "process_state", "run", "start", "wait_channel"]

STDOUT_LIMIT = 16 << 20
"""Bytes of output that are kept from the beginning; the rest is read and dropped."""
STDERR_LIMIT = 64 << 10
"""Bytes of standard error that are kept from the end."""
TERM_GRACE = 0.5
"""Seconds between the polite signal and the one that cannot be caught."""
KILL_GRACE = 2.0
"""Seconds that a killed child has to disappear before it is left behind."""
DRAIN = 0.3
"""Seconds that output may still come after the end: whoever else holds the pipe is not waited for."""
POLL = 0.03


class Child:
    """A running child. Use `result`, or leave the `with` block to end it."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None, stdout_limit: int, stderr_limit: int
    ) -> None:
        self._argv, self._env = list(argv), None if env is None else dict(env)
        self._limits = (stdout_limit, stderr_limit)
        self._began = time.monotonic()
        self._seconds = 0.0
        self._process: _Popen | None = None
        self._lock = threading.Lock()
        self._reaped = False
        self._abandoned = False
        self._done = threading.Event()
        self._out, self._err = bytearray(), bytearray()
        self._truncated = False
        self._error: str | None = None
        _running.add(self)
        # Starting can hang as well (a program on a dead file server), so that the thread does it.
        # A daemon: nothing that it waits for may hold up the end of this process.
        threading.Thread(target=self._run, name=f"child {self._argv[0]}", daemon=True).start()

    def __enter__(self) -> Child:
        """The child itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the child if it still runs."""
        if not self._done.is_set():
            self._end()

    @property
    def pid(self) -> int | None:
        """The process id once it is known."""
        return getattr(self._process, "pid", None)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._done.is_set()

    def said(self) -> bytes:
        """What it has written to standard error so far, as far as it is kept."""
        return bytes(self._err)

    def result(self, deadline: float) -> Outcome:
        """How it ended. `deadline` counts seconds from the start; a child that runs longer is ended."""
        try:
            if self._done.wait(max(0.0, self._began + deadline - time.monotonic())):
                return self._outcome(timed_out=False)
        except BaseException:
            self._signal(signal.SIGKILL)
            raise
        return self._outcome(timed_out=True) if self._end() else self._left_behind()

    def _end(self) -> bool:
        try:
            self._signal(signal.SIGTERM)
            if self._done.wait(TERM_GRACE):
                return True
        finally:
            self._signal(signal.SIGKILL)
        if self._done.wait(KILL_GRACE):
            return True
        self._abandoned = True
        return False

    def _outcome(self, *, timed_out: bool) -> Outcome:
        process = self._process
        return Outcome(
            None if process is None else process.returncode,
            bytes(self._out),
            bytes(self._err),
            timed_out=timed_out,
            seconds=self._seconds,
            truncated=self._truncated,
            error=self._error,
        )

    def _left_behind(self) -> Outcome:
        return Outcome(
            None,
            bytes(self._out),
            bytes(self._err),
            timed_out=True,
            abandoned=True,
            seconds=time.monotonic() - self._began,
            truncated=self._truncated,
            state=process_state(self.pid),
            wait_channel=wait_channel(self.pid),
        )

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            pid = self.pid
            if pid is None or self._reaped:
                return
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # it has not become the leader of its group yet
                _kill(pid, number)
            except PermissionError:
                pass

    def _run(self) -> None:
        try:
            process = _Popen(self)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._process = None
            self._error = getattr(error, "strerror", None) or str(error)
        else:
            self._follow(process)
        self._seconds = time.monotonic() - self._began
        _running.discard(self)
        self._done.set()

    def _follow(self, process: _Popen) -> None:
        with selectors.DefaultSelector() as pipes:
            for stream, keep in ((process.stdout, self._keep_out), (process.stderr, self._keep_err)):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    pipes.register(stream, selectors.EVENT_READ, keep)
            while not (_has_ended(process) or self._abandoned):
                _read(pipes, POLL)
            if not self._abandoned:
                self._reap(process)
                until = time.monotonic() + DRAIN
                while pipes.get_map() and time.monotonic() < until:
                    _read(pipes, POLL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        if self._abandoned:  # waits as long as the kernel does, so that no zombie stays when it lets go
            process.wait()
            self._reaped = True

    def _reap(self, process: _Popen) -> None:
        with self._lock:
            # While the leader is not reaped its number cannot go to another group.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._reaped = True

    def _keep_out(self, data: bytes) -> None:
        room = self._limits[0] - len(self._out)
        self._out += data[: max(0, room)]
        self._truncated |= len(data) > room

    def _keep_err(self, data: bytes) -> None:
        self._err += data
        del self._err[: max(0, len(self._err) - self._limits[1])]


class _Popen(subprocess.Popen[bytes]):
    """Known to its `Child` before the program has started, so that one stuck there can be killed."""

    def __init__(self, child: Child) -> None:
        child._process = self
        super().__init__(
            child._argv,
            env=child._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            # Setting the user that it has anyway makes Python fork: after a vfork this process, with its
            # interpreter lock, would wait for as long as the program takes to load.
            user=os.geteuid(),
            preexec_fn=bound_to(os.getpid()),
        )


_running: set[Child] = set()


@atexit.register
def _end_all() -> None:
    for child in tuple(_running):
        child._signal(signal.SIGKILL)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdout_limit: int = STDOUT_LIMIT,
    stderr_limit: int = STDERR_LIMIT,
) -> Child:
    """Start a program; `env` replaces the environment. Never blocks: a failure to start is in the result."""
    return Child(argv, env, stdout_limit, stderr_limit)


def run(
    argv: Sequence[str],
    deadline: float,
    *,
    env: Mapping[str, str] | None = None,
    stdout_limit: int = STDOUT_LIMIT,
    stderr_limit: int = STDERR_LIMIT,
) -> Outcome:
    """Run a program to its end, or to its deadline in seconds."""
    with start(argv, env=env, stdout_limit=stdout_limit, stderr_limit=stderr_limit) as child:
        return child.result(deadline)


def _read(pipes: selectors.BaseSelector, seconds: float) -> None:
    if not pipes.get_map():  # it has closed them, mostly because it is about to end
        time.sleep(seconds / 10)
        return
    for key, _ in pipes.select(seconds):
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if data:
            key.data(data)
        else:
            pipes.unregister(key.fileobj)


def _has_ended(process: _Popen) -> bool:
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, flags) is not None
    except AttributeError:  # macOS
        return process.poll() is not None
    except ChildProcessError:
        return True


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
