"""How a child process ended, in values and in one line, and what the kernel says of one that has not."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended. `returncode` is negative for a signal, None where it never started or ended."""

    returncode: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    """Its last part, where it was long."""
    timed_out: bool = False
    abandoned: bool = False
    """It did not die when it was killed."""
    seconds: float = 0.0
    truncated: bool = False
    """More output came than was kept."""
    error: str | None = None
    """Why it could not be started."""
    state: str | None = None
    """The kernel's letter for an abandoned child, such as D."""
    wait_channel: str | None = None
    """The kernel function that an abandoned child waits in."""

    @property
    def ok(self) -> bool:
        """It ended by itself with status 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def problem(self) -> str | None:
        """What went wrong, in one line; None if nothing did."""
        if self.ok:
            return None
        if self.error is not None:
            return f"could not be started: {self.error}"
        if self.abandoned:
            where = f", waiting in {self.wait_channel}" if self.wait_channel else ""
            return f"no answer in {self.seconds:.0f} s and it cannot be killed (state {self.state}{where})"
        if self.timed_out:
            return f"no answer in {self.seconds:.1f} s"
        if self.returncode is not None and self.returncode < 0:
            return f"ended by {_signal_name(-self.returncode)}"
        last = self.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"exit status {self.returncode}" + (f": {last[0][:300]}" if last else "")


def process_state(pid: int | None) -> str | None:
    """The kernel's letter for a process (R S D Z T …); None where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def wait_channel(pid: int | None) -> str | None:
    """The kernel function in which a process sleeps; None where the kernel does not tell."""
    try:
        name = Path(f"/proc/{pid}/wchan").read_text().strip("\0\n ")
    except (OSError, UnicodeDecodeError):
        return None
    return name if name not in ("", "0") else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
