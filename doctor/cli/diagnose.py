"""`fsdp-doctor diagnose`: from what a failed or hanging job left behind to cause, rank and fix."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.diagnose_data import data
from fsdp_doctor.cli.diagnose_text import render as text_of
from fsdp_doctor.cli.discretion import discreet
from fsdp_doctor.cli.output import is_terminal
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.diagnosis import Diagnosis
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.flight import FlightVerdict
from fsdp_doctor.subjects.incident import Incident

if TYPE_CHECKING:
    from fsdp_doctor.diagnosis.session import Read

TAG = "logs"
ENDING_SECONDS = 1.0
"""Of a given deadline, for drawing conclusions and writing."""
RECORDER_SECONDS = 120.0
AUTO = "auto"


@click.command("diagnose", short_help="Name the cause, the rank and the fix of a job that failed or hangs.")
@common("text", "json", "junit", "github", judging=True)
@click.option(
    "--live",
    "live",
    metavar="[PID]",
    is_flag=False,
    flag_value=AUTO,
    default=None,
    help="Look at the job that runs here now: any process of it, or none where there is one job.",
)
@click.option("--job", metavar="NAME", help="With --live: the job, where several run.")
@click.option("--table", is_flag=True, help="Also one line per rank: state, step, exit code, collective.")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
def command(
    settings: Settings, paths: tuple[str, ...], live: str | None, job: str | None, table: bool
) -> int:
    """Diagnose a job from what it left behind.

    PATHS are logs, folders, archives (tar, zip, gz, zst), or - for standard input.

    All usual forms are read: output of torchrun (plain, --tee, --log-dir), srun, mpirun and Kubernetes, JSON
    logs, NCCL's debug output, elastic error files, Flight Recorder dumps, snapshots of CUDA memory, stacks of
    py-spy and faulthandler, kernel logs and Slurm accounting. Give what there is of all ranks and nodes
    together: silence is evidence.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    if live is not None or job is not None:
        if paths and live == AUTO and len(paths) == 1 and paths[0].isdigit():
            live, paths = paths[0], ()
        if paths:
            raise click.UsageError("--live looks at a running job: give no PATHS with it")
        from fsdp_doctor.cli.live import diagnose_live

        return diagnose_live(live or AUTO, job, settings, began)
    if not paths:
        raise click.UsageError("give logs, folders or archives to diagnose, - for standard input, or --live")
    missing = [p for p in paths if p != "-" and not os.path.lexists(p)]
    if missing:
        raise click.UsageError(f"{missing[0]}: there is no such file or folder")
    report = diagnosed(paths, settings, began)
    if settings.format == "text":
        text = text_of(discreet(report), settings.style(), table)
    else:
        text = rendered(report, settings)
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def diagnosed(paths: Sequence[str], settings: Settings, began: float) -> Report:
    """Read everything, draw the conclusions, and judge them by the LOG checks."""
    from fsdp_doctor.diagnosis.culprit.decide import conclude
    from fsdp_doctor.diagnosis.session import read

    started = now()
    until = None if settings.deadline is None else began + max(settings.deadline - ENDING_SECONDS, 0.1)
    with _shown() as show:
        found = read(paths, until=until, progress=show)
        verdict = _recorder(found, until, show)
    evidence = _evidence(found, verdict, until)
    diagnosis = conclude(evidence)
    if verdict is not None:
        diagnosis = _with_recorded_ranks(diagnosis, verdict)
    return Report(
        command="diagnose",
        results=judged(evidence, diagnosis, settings, verdict),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": ", ".join(paths)[:500], **data(evidence, diagnosis)},
        unjudged=tuple(_unjudged(evidence, diagnosis)),
        strict=settings.strict,
    )


def judged(
    evidence: Incident, diagnosis: Diagnosis, settings: Settings, verdict: FlightVerdict | None = None
) -> tuple[Result, ...]:
    """What the selected LOG checks say; those of dumps only where there were any."""
    wanted = chosen(settings)
    checks = [c for c in registry().checks if TAG in c.tags and wanted.includes(c.code)]
    known: dict[type[object], Known[object]] = {
        Incident: Known(evidence, "the logs"),
        Diagnosis: Known(diagnosis, "the logs"),
    }
    if verdict is None:
        checks = [c for c in checks if FlightVerdict not in c.needs]
    else:
        known[FlightVerdict] = Known(verdict, "the dumps")
    facts = Facts(known)
    today = datetime.now(timezone.utc).date()
    return suppress(run_checks(checks, facts, Options()), known_suppressions(settings), today)


def _recorder(found: Read, until: float | None, show: Callable[[str], None]) -> FlightVerdict | None:
    """What the Flight Recorder's dumps say; None where there are none."""
    if not found.dumps:
        return None
    from fsdp_doctor.diagnosis import flight

    show(f"{len(found.dumps)} dumps of the Flight Recorder")
    left = RECORDER_SECONDS if until is None else max(until - time.monotonic(), 1.0)
    return flight.judge(flight.read(tuple(found.dumps), deadline=left, names=found.spool.names))


def _evidence(found: Read, verdict: FlightVerdict | None, until: float | None) -> Incident:
    """The incident: logs, and dumps with the ranks that they name."""
    from fsdp_doctor.diagnosis.session import incident

    if verdict is None:
        return incident(found, until=until)
    from fsdp_doctor.diagnosis import flight

    logs = incident(found, flight.recorder_conclusions(verdict), until)
    job = logs.job
    if job.world_size is None and verdict.world:
        job = replace(job, world_size=len(verdict.world), basis="the members of the recorded process groups")
    return replace(logs, job=job, inputs=(*logs.inputs, *flight.inputs(verdict)))


def _with_recorded_ranks(diagnosis: Diagnosis, verdict: FlightVerdict) -> Diagnosis:
    """Where the recorders stood, for ranks of which the logs know less."""
    from fsdp_doctor.diagnosis import flight

    recorded = {r.rank: r for r in flight.rank_states(verdict)}
    known = {r.rank for r in diagnosis.ranks if r.last_line or r.first_error or r.exit is not None}
    kept = [
        replace(r, collective=r.collective or recorded[r.rank].collective) if r.rank in recorded else r
        for r in diagnosis.ranks
        if r.rank in known or r.rank not in recorded
    ]
    more = [r for n, r in recorded.items() if n not in known]
    return replace(diagnosis, ranks=tuple(sorted((*kept, *more), key=lambda r: r.rank)))


def _unjudged(evidence: Incident, diagnosis: Diagnosis) -> Iterator[str]:
    cause = diagnosis.cause
    if cause is not None and cause.confidence == "low":
        yield "the cause: these logs do not decide it"
    read = [i for i in evidence.inputs if i.kind != "unread"]
    for i in evidence.inputs:
        if i.problem and (i.kind != "unread" or not read) and not evidence.truncated:
            yield f"{i.name}: {i.problem}"
    if not read and not evidence.recorder and not any(i.problem for i in evidence.inputs):
        yield "nothing that was given could be read as a log"
    if evidence.truncated:
        yield "the rest of the logs: the deadline came first"


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """What is being read, on standard error, for a person only."""
    if not is_terminal(sys.stderr):
        yield lambda said: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("reading") as status:
        yield lambda said: status.update(escape(f"diagnose: {said}"))
