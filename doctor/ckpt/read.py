"""Read a checkpoint: its index, from a child with a deadline and a memory limit.

Nothing in it is executed and no tensor is read. What is wrong with it is in `CheckpointIndex.problems`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fsdp_doctor
from fsdp_doctor.ckpt.path import failed, is_remote
from fsdp_doctor.process import Child, Outcome, start

if TYPE_CHECKING:
    from fsdp_doctor.subjects.checkpoint import CheckpointIndex
    from fsdp_doctor.subjects.checkpoint_problem import ProblemKind

DEADLINE = 120.0
"""Seconds."""
ANSWER_BYTES = 4 << 30
CHILD = Path(__file__).with_name("read_child.py")
PACKAGE_ROOT = Path(fsdp_doctor.__file__).parent.parent


def read(path: str, deadline: float = DEADLINE, *, values: bool = True) -> CheckpointIndex:
    """The index of the checkpoint at a path or URL. Never raises for what is wrong with the checkpoint.

    `deadline` counts seconds. `values` also reads small objects inside DCP's data files (parameter groups,
    steps, dataloader state); without it only metadata is read.
    """
    return begin(path, values=values).result(deadline)


class Reading:
    """A checkpoint that is being read while the caller does something else."""

    def __init__(self, path: str, child: Child) -> None:
        self._path, self._child = path, child

    def result(self, deadline: float = DEADLINE) -> CheckpointIndex:
        """The index; `deadline` counts seconds from the beginning."""
        # Imported while the child reads: together they take as long to start as it does.
        from fsdp_doctor.ckpt.wire import decode
        from fsdp_doctor.codec import FormatError
        from fsdp_doctor.subjects.checkpoint_problem import ProblemKind

        path = self._path
        with self._child as child:
            outcome = child.result(deadline)
        if outcome.returncode == 0 and not outcome.truncated:
            try:
                return decode(outcome.stdout)
            except FormatError as error:
                words = f"the reader's answer cannot be understood{error}"
                return failed(path, ProblemKind.READER_FAILED, words)
        return failed(path, *_why(outcome, deadline))


def begin(path: str, *, values: bool = True) -> Reading:
    """Start to read; the same as `read`, in two parts."""
    isolated = [] if is_remote(path) else ["-I", "-S"]
    argv = [sys.executable, *isolated, str(CHILD), str(PACKAGE_ROOT), path, "values" if values else "names"]
    return Reading(path, start(argv, stdout_limit=ANSWER_BYTES))


def _why(outcome: Outcome, deadline: float) -> tuple[ProblemKind, str]:
    from fsdp_doctor.subjects.checkpoint_problem import ProblemKind

    if outcome.timed_out:
        where = f" (it waits in {outcome.wait_channel})" if outcome.abandoned and outcome.wait_channel else ""
        return ProblemKind.DEADLINE, f"not read within {deadline:g} s{where}; give more with --deadline"
    code = outcome.returncode
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return (
            ProblemKind.PICKLE_DAMAGED,
            f"reading it crashed the reader ({name}): a pickle that nests too deep, or a fault of this tool",
        )
    last = outcome.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return (
        ProblemKind.READER_FAILED,
        f"the reader failed: {outcome.error or (last[0][:300] if last else code)}",
    )
