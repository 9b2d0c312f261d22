"""`--verify`: reading all bytes, with a bar on standard error for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from fsdp_doctor.ckpt.verify import total, verify
from fsdp_doctor.cli.ckpt.tree import size
from fsdp_doctor.cli.output import is_terminal
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem, ProblemKind


def verified(index: CheckpointIndex, path: str, until: float) -> tuple[CheckpointIndex, dict[str, object]]:
    """The index with what reading all bytes found, and the figures of it. `until`: monotonic seconds."""
    with _bar(total(index)) as progress:
        try:
            found = verify(index, path, progress, until)
        except OSError as error:
            problem = Problem(
                ProblemKind.FILE_FORBIDDEN, Harm.BROKEN, f"cannot be read: {error.strerror or error}"
            )
            return replace(index, problems=(*index.problems, problem)), {"complete": False}
    problems = [*index.problems, *found.problems]
    if not found.complete:
        words = (
            f"only {found.bytes} of {total(index)} bytes were read before the deadline: give more --deadline"
        )
        problems.append(Problem(ProblemKind.DEADLINE, Harm.DOUBT, words))
    figures: dict[str, object] = {
        "files": found.files,
        "bytes": found.bytes,
        "checksums": found.checksums,
        "without_checksums": found.without,
        "wrong": len(found.problems),
        "complete": found.complete,
        "seconds": round(found.seconds, 3),
    }
    return replace(index, problems=tuple(problems)), figures


def verified_words(figures: object) -> str:
    """The same in a line."""
    told: dict[str, object] = figures if isinstance(figures, dict) else {}
    count, number = told.get("bytes"), told.get("checksums")
    words = f"{size(count if isinstance(count, int) else 0)} read, {number} checksums compared"
    without = told.get("without_checksums")
    if isinstance(without, list) and without:
        words += f"; {len(without)} files of formats that store none (sizes and coverage were compared)"
    return words if told.get("complete") else f"{words}; not all was read"


@contextmanager
def _bar(count: int) -> Iterator[Callable[[int], None]]:
    if not is_terminal(sys.stderr):
        yield lambda read: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("verifying", total=count)
        yield lambda read: shown.advance(task, read)
