"""`fsdp-doctor diagnose`: from what a failed or hanging job left behind to the cause, the rank and the fix."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

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
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.incident import Diagnosis, Incident, RecorderConclusion

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
    """Diagnose a job from what it left behind: PATHS are logs, folders, archives (tar, zip, gz, zst), or - for
    standard input.

    All usual forms are read: output of torchrun (plain, --tee, --log-dir), srun, mpirun and Kubernetes, JSON
    logs, NCCL's debug output, elastic error files, Flight Recorder dumps, stacks of py-spy and faulthandler,
    kernel logs and Slurm accounting. Give what there is of all ranks and nodes together: silence is evidence.
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
    from fsdp_doctor.diagnosis.session import incident, read

    started = now()
    until = None if settings.deadline is None else began + max(settings.deadline - ENDING_SECONDS, 0.1)
    with _shown() as show:
        found = read(paths, until=until, progress=show)
        recorder = _recorder(found.dumps, until, show)
    evidence = incident(found, recorder)
    diagnosis = conclude(evidence)
    return Report(
        command="diagnose",
        results=judged(evidence, diagnosis, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": ", ".join(paths)[:500], **data(evidence, diagnosis)},
        unjudged=tuple(_unjudged(evidence, diagnosis)),
        strict=settings.strict,
    )


def judged(evidence: Incident, diagnosis: Diagnosis, settings: Settings) -> tuple[Result, ...]:
    """What the selected LOG checks say."""
    wanted = chosen(settings)
    checks = [c for c in registry().checks if TAG in c.tags and wanted.includes(c.code)]
    facts = Facts({Incident: Known(evidence, "the logs"), Diagnosis: Known(diagnosis, "the logs")})
    today = datetime.now(timezone.utc).date()
    return suppress(run_checks(checks, facts, Options()), known_suppressions(settings), today)


def _recorder(
    dumps: Sequence[str], until: float | None, show: Callable[[str], None]
) -> tuple[RecorderConclusion, ...]:
    """What the Flight Recorder's dumps say."""
    if not dumps:
        return ()
    from fsdp_doctor.diagnosis.flight.reading import read as read_dumps
    from fsdp_doctor.diagnosis.flight.told import recorder_conclusions
    from fsdp_doctor.diagnosis.flight.verdict import judge

    show(f"{len(dumps)} dumps of the Flight Recorder")
    left = RECORDER_SECONDS if until is None else max(until - time.monotonic(), 1.0)
    return recorder_conclusions(judge(read_dumps(tuple(dumps), deadline=left)))


def _unjudged(evidence: Incident, diagnosis: Diagnosis) -> Iterator[str]:
    cause = diagnosis.cause
    if cause is not None and cause.confidence == "low":
        yield "the cause: these logs do not decide it"
    read = [i for i in evidence.inputs if i.kind != "unread"]
    for i in evidence.inputs:
        if i.kind == "unread" and not read:
            yield f"{i.name}: {i.problem}"
    if not read and not evidence.recorder:
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
