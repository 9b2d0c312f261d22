"""Run a command to its end: its output passed on and kept, its signals forwarded, its ranks watched."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from fsdp_doctor.diagnosis.recording.console import CHUNK, Console
from fsdp_doctor.diagnosis.recording.journal import Journal
from fsdp_doctor.diagnosis.recording.signals import Forwarding

POLL = 0.25
"""Seconds between two looks at whether the command has ended."""
GATHER = 0.01
"""Seconds that pass after a little output before more is fetched: to be woken costs more than a line does."""
SMALL = 4096
DRAIN = 2.0
"""Seconds without output, after the command's end, in which a child that it left may still write."""
STOP_GRACE = 45.0
"""Seconds after SIGTERM: torchrun gives its ranks 30."""


class Watching(Protocol):
    """What looks at the job from outside while it runs."""

    def tick(self, output: int) -> bool:
        """A moment passed with so many bytes of output in all: whether to stop the command."""


class CannotStart(Exception):
    """The command could not be started. `status` is what a shell would exit with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `status` is negative for a signal, as of `subprocess`."""

    status: int
    seconds: float
    signals: tuple[str, ...] = ()
    """Signals that reached it through `run`, by name."""
    stopped: bool = False
    """By `run` itself, because it hung."""

    @property
    def exit_code(self) -> int:
        """As a shell says it: 128 and the signal's number."""
        return 128 - self.status if self.status < 0 else self.status


def conduct(
    words: Sequence[str],
    env: Mapping[str, str],
    console: Console,
    journal: Journal,
    watching: Watching,
) -> Ended:
    """Run a command. Raises `CannotStart`. Only what `Watching.tick` answers may end it early."""
    began = time.monotonic()
    process = _start(words, env)
    journal.event("started", pid=process.pid)
    heard: list[str] = []

    def hear(number: object, passed_on: bool) -> None:
        name = getattr(number, "name", str(number))
        heard.append(name)
        journal.event("signal", signal=name, passed_on=passed_on)

    forwarding = Forwarding(process.pid, hear)
    forwarding.start()
    stop_at: float | None = None
    stopped = False
    try:
        with selectors.DefaultSelector() as pipes:
            _register(pipes, process.stdout, 1)
            _register(pipes, process.stderr, 2)
            while process.poll() is None:
                _pass_on(pipes, console)
                if not stopped and watching.tick(console.bytes):
                    stopped, stop_at = True, time.monotonic() + STOP_GRACE
                    journal.event("stopping")
                    process.terminate()
                elif stop_at is not None and time.monotonic() > stop_at:
                    process.kill()
            seconds = time.monotonic() - began
            _drain(pipes, console)
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE)
        process.kill()
        process.wait()
        raise
    finally:
        forwarding.stop()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    journal.event("ended", status=process.returncode)
    return Ended(process.returncode, seconds, tuple(heard), stopped)


def _start(words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(words), env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except FileNotFoundError:
        raise CannotStart(f"no program {words[0]!r}", 127) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotStart(f"{words[0]}: {reason}", 126) from None


def _register(pipes: selectors.BaseSelector, stream: IO[bytes] | None, target: int) -> None:
    if stream is not None:
        os.set_blocking(stream.fileno(), False)
        pipes.register(stream, selectors.EVENT_READ, target)


def _pump(pipes: selectors.BaseSelector, console: Console, seconds: float) -> int:
    """Pass on what is there within so many seconds; how many bytes."""
    if not pipes.get_map():
        time.sleep(seconds)
        return 0
    passed = 0
    for key, _ in pipes.select(seconds):
        try:
            data = os.read(key.fd, CHUNK)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if data:
            console.take(key.fd, data, key.data)
            passed += len(data)
        else:
            pipes.unregister(key.fileobj)
    return passed


def _pass_on(pipes: selectors.BaseSelector, console: Console) -> None:
    """Pass on what comes until it is time for a look: a job may print a thousand lines in between."""
    until = time.monotonic() + POLL
    while (left := until - time.monotonic()) > 0:
        passed = _pump(pipes, console, left)
        if not passed:
            return
        if passed < SMALL:
            time.sleep(GATHER)


def _drain(pipes: selectors.BaseSelector, console: Console) -> None:
    """What is in the pipes, and what comes soon: a child left behind may hold them open for ever."""
    until = time.monotonic() + DRAIN
    while pipes.get_map() and time.monotonic() < until:
        if _pump(pipes, console, POLL):
            until = max(until, time.monotonic() + POLL)
        elif time.monotonic() > until - DRAIN / 2:
            return


def log_size(folders: Sequence[Path]) -> int:
    """Bytes of all files below the folders of the ranks' logs, for a launcher that shows nothing itself."""
    total = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.stat(os.path.join(place, name)).st_size
    return total
