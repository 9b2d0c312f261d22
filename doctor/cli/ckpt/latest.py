"""`fsdp-doctor ckpt latest`: which checkpoint of a run can be resumed from?"""

from __future__ import annotations

import os
import platform
import time

import click

from fsdp_doctor.ckpt.latest import find
from fsdp_doctor.cli.ckpt.on_disk import checks_of
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Report
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.checkpoint_run import Candidate, RunFolder
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.scheduler import Identity

SECONDS = 300.0


@click.command("latest", short_help="The newest whole checkpoint of a run.")
@common("text", "json", "junit", "github", judging=True)
@click.option(
    "--quiet", "-q", is_flag=True, help="Print the path alone, for scripts; nothing where there is none."
)
@click.argument("run_folder", metavar="RUN_DIR")
def command(settings: Settings, run_folder: str, quiet: bool) -> int:
    """Find the newest checkpoint in RUN_DIR that is whole, and say why newer ones are not.

    Steps come from names (step-100, checkpoint-100, global_step100, iter_0000100, epoch=1-step=100.ckpt);
    else the time of change decides. It fails where no checkpoint is whole.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    started = now()
    if not os.path.isdir(run_folder):
        raise click.UsageError(f"{run_folder}: there is no such folder")
    try:
        run = find(run_folder, settings.deadline if settings.deadline is not None else SECONDS)
    except OSError as error:
        raise click.UsageError(f"{run_folder}: {error.strerror or error}") from None
    latest = run.latest
    identity = Known(Identity(platform.node(), None, None))
    results = run_checks(
        checks_of(settings, ("CKP090",)), Facts({RunFolder: Known(run), Identity: identity}), Options()
    )
    report = Report(
        command="ckpt latest",
        results=results,
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={
            "target": run_folder,
            "latest": None if latest is None else latest.path,
            "step": None if latest is None else latest.step,
            "newer": [{"path": c.path, "step": c.step, "why": c.why} for c in run.newer],
            "candidates": [_figures(c) for c in run.candidates],
            "tracker": run.tracked,
        },
        strict=settings.strict,
    )
    if quiet and settings.format == "text":
        if latest is not None:
            settings.deliver(latest.path + "\n")
        return report.exit_code
    text = rendered(report, settings)
    if settings.format == "text":
        text = f"{_headline(latest)}\n\n" + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def _headline(latest: Candidate | None) -> str:
    from fsdp_doctor.report.escape import one_line

    if latest is None:
        return "no whole checkpoint"
    step = f" (step {latest.step})" if latest.step is not None else ""
    return one_line(f"{latest.path}{step}")


def _figures(candidate: Candidate) -> dict[str, object]:
    return {
        "path": candidate.path,
        "step": candidate.step,
        "read": candidate.read,
        "complete": candidate.complete,
        "format": candidate.format.value if candidate.read else None,
    }
