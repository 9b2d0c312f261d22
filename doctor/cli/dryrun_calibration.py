"""`dryrun --calibrate` and `--calibration`: tables of operators that were measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fsdp_doctor.cli.dryrun_gpu import Hand
from fsdp_doctor.cli.reporting import now
from fsdp_doctor.memory.calibrate import Calibrated, calibrate
from fsdp_doctor.memory.calibration import (
    BadTable,
    Table,
    file_name,
    folder,
    read,
    stored,
    write,
)
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.replay import Replay, ReplayError
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.tables.gpu_memory import DEFAULT_SM, Product, product


def calibration_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Callable[..., int]], Callable[..., int]], ...] = (
    click.option(
        "--calibrate",
        is_flag=True,
        help="Measure the job's operators that no measurement speaks for on the first visible GPU; keep the "
        "figures for later dry-runs for such a GPU.",
    ),
    click.option(
        "--calibration",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Table to read, and to write with --calibrate. [default: the newest for the GPU in the user's "
        "cache folder]",
    ),
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The table of a dry-run, and what became of measuring."""

    table: Table | None = None
    file: Path | None = None
    made: Calibrated | None = None
    problem: str = ""
    """Why --calibrate did not do what was asked."""
    note: str = ""
    """Why a named table is not used, or what it was measured with where that is something else."""


def table_for(named: Path | None, gpu: Product | None, writing: bool) -> Tables:
    """The table for a GPU or its architecture. Raises `click.UsageError` for a named file that is none."""
    sm = gpu.sm if gpu is not None else DEFAULT_SM
    if named is None:
        found = stored(sm, like=lambda t: not _other_gpu(t, gpu))
        return Tables() if found is None else Tables(found[1], found[0])
    try:
        table = read(named)
    except FileNotFoundError:
        if writing:
            return Tables(file=named)
        raise click.UsageError(f"--calibration {named}: there is no such file") from None
    except (BadTable, OSError) as error:
        raise click.UsageError(f"--calibration {named}: {error}") from None
    if table.sm != sm:
        other = f"--calibration {named}: measured on {table.gpu} (sm {table.sm})"
        if writing:
            raise click.UsageError(f"{other}; name another file for the GPU at hand (sm {sm})")
        return Tables(note=f"{other} and not used, since the prediction is for sm {sm}")
    return Tables(table, named)


def calibrated(
    job: Job, known: Tables, hand: Hand, named: bool, python: str, deadline: float | None
) -> Tables:
    """Measure, and keep what was measured."""
    gpu = hand.gpu
    if gpu is None:
        return replace(known, problem=hand.why)
    fresh = Table(gpu.torch, gpu.cuda, gpu.cudnn, gpu.gpu, gpu.sm, now())
    table = known.table
    if table is not None and not table.same_versions(fresh):
        if named:
            return replace(
                known,
                problem=f"{known.file} is from {table.gpu}, torch {table.torch}, cuDNN {table.cudnn}; here "
                f"are {gpu.gpu}, torch {gpu.torch}, cuDNN {gpu.cudnn}: name another file",
            )
        table = _kept(fresh)
    try:
        made = calibrate(job, table or fresh, python=python, deadline=deadline)
    except ReplayError as error:
        return replace(known, problem=f"measuring operators failed: {error.text}")
    file = known.file if named and known.file is not None else folder() / file_name(fresh)
    if made.measured:
        try:
            write(replace(made.table, created=now()), file)
        except OSError as error:
            return Tables(made.table, None, made, f"{file} cannot be written: {error.strerror or error}")
    return Tables(made.table, file, made)


def _kept(fresh: Table) -> Table | None:
    """An older table of the same GPU and versions, to be added to."""
    try:
        table = read(folder() / file_name(fresh))
    except (BadTable, OSError):
        return None
    return table if table.same_versions(fresh) else None


def compared(tables: Tables, done: Replay | None, gpu: Product | None) -> Tables:
    """With a note where the table is from another GPU, torch or cuDNN than the dry-run is for."""
    table = tables.table
    if table is None or done is None:
        return tables
    here = str(done.about.get("torch") or "")
    cudnn = done.about.get("cudnn")
    other: list[str] = []
    if here and _release(here) != _release(table.torch):
        other.append(f"torch {table.torch} (here {here})")
    if table.cudnn and isinstance(cudnn, int) and cudnn != table.cudnn:
        other.append(f"cuDNN {table.cudnn} (here {cudnn})")
    if gpu is not None and _other_gpu(table, gpu):
        other.append(f"{table.gpu} (asked for {gpu.name})")
    if not other:
        return tables
    return replace(
        tables, note=f"measured with {', '.join(other)}: kernels may differ; --calibrate measures anew"
    )


def _other_gpu(table: Table, gpu: Product | None) -> bool:
    """Whether a table is from another product than the one that was named."""
    if gpu is None or not gpu.pattern:
        return False
    return product(table.gpu) not in (None, gpu)


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])


def unjudged(tables: Tables) -> tuple[str, ...]:
    """What was asked for and not done."""
    return (f"--calibrate: {tables.problem}",) if tables.problem else ()


def data(tables: Tables) -> dict[str, object] | None:
    """The report's figures; None where no table is used and none was made."""
    table, made = tables.table, tables.made
    if table is None and not tables.note:
        return None
    return {
        "file": str(tables.file) if tables.file is not None else None,
        "gpu": table.gpu if table is not None else None,
        "sm": table.sm if table is not None else None,
        "torch": table.torch if table is not None else None,
        "cudnn": table.cudnn if table is not None else None,
        "entries": len(table.entries) if table is not None else 0,
        "measured": [] if made is None else [{"operator": e.operator} for e in made.measured],
        "failed": {} if made is None else dict(made.failed),
        "note": tables.note,
    }


def render(tables: Tables, style: Style) -> str:
    """A few lines for people."""
    page = Page(style)
    table, made = tables.table, tables.made
    lines: list[str] = [tables.note] if tables.note else []
    if table is not None:
        lines.append(
            f"{len(table.entries)} calls of operators as measured on {table.gpu} with torch {table.torch}"
            + (f", cuDNN {table.cudnn}" if table.cudnn else "")
            + (f": {tables.file}" if tables.file is not None else "")
        )
    if made is not None:
        lines.append(
            f"{len(made.measured)} of {made.calls} calls were measured now"
            + ("".join(f"; {o}: {why}" for o, why in list(made.failed.items())[:4]))
        )
    if not lines:
        return ""
    page.paragraph([("measured operators", "bold")])
    for line in lines:
        page.paragraph([(line, "")], first="  ", hang=4)
    page.blank()
    return page.text()
