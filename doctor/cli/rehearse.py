"""`fsdp-doctor rehearse -- COMMAND`: a training script as rank 0 of N, without the others."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.dryrun_gpu import with_figures
from fsdp_doctor.cli.dryrun_options import gpu_of
from fsdp_doctor.cli.rehearse_text import render as figures_text
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.cli.sources import interpreter
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.memory.rehearsal.answers import conclude
from fsdp_doctor.memory.rehearsal.job import DEVICES, RehearsalError, from_launch
from fsdp_doctor.memory.rehearsal.report_data import data
from fsdp_doctor.memory.rehearsal.run import rehearse
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.rehearsal import Rehearsal

CODES = ("MEM040", "MEM041", "MEM042", "MEM043")


@click.command(
    "rehearse",
    short_help="Run a training script as rank 0 of N, and see what it allocates.",
    # What follows the first word is the command's, with or without `--`.
    context_settings={"allow_interspersed_args": False},
)
@common("text", "json", "junit", "github", judging=True)
@click.option(
    "--world-size",
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="Ranks of the job. [default: what the command starts]",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 1000),
    default=2,
    metavar="K",
    help="Optimizer steps after which the script is ended. [default: 2]",
)
@click.option("--gpu", metavar="GPU", help='A product such as "H100 80GB", or a number of GiB.')
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="auto",
    help="gpu: measure on the GPU here; fake: no GPU is touched. [default: an idle GPU where there is one]",
)
@click.option("--python", metavar="EXE", help="The Python that runs it, where the command's is another one.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] COMMAND...")
def command(
    settings: Settings,
    world_size: int | None,
    steps: int,
    gpu: str | None,
    device: str,
    python: str | None,
    command: tuple[str, ...],
) -> int:
    """Run a training script, unmodified, as rank 0 of N, and say what it allocates in each phase.

    COMMAND starts the job: `python train.py …`, `torchrun … train.py …`, `accelerate launch … train.py …`.
    One process stands for its rank 0, over a process group that moves nothing. On a GPU its memory and the
    time of its steps, without communication, are measured; without one, what is on "cuda" is fake and
    followed. It ends by itself after K optimizer steps, and writes nothing outside of a folder of its own.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    started = now()
    product = gpu_of({"gpu": gpu})
    try:
        launch = parse_launch(command, Path.cwd(), os.environ)
        job = from_launch(launch, world_size, steps, device)
    except (LaunchError, RehearsalError) as error:
        raise click.UsageError(str(error)) from None
    exe = interpreter(python) if python is not None else python_of(launch)
    left = None if settings.deadline is None else max(1.0, began + settings.deadline - time.monotonic() - 1.0)
    found = conclude(job, rehearse(job, product, exe, left), product)
    if found.oom is not None:
        found = replace(found, oom=with_figures(found.oom))
    report = Report(
        command="rehearse",
        results=_judged(found, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data=data(found),
        strict=settings.strict,
    )
    text = rendered(report, settings)
    if settings.format == "text":
        text = figures_text(found, settings.style()) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def python_of(launch: Launch) -> str:
    """The interpreter that the command would use. Raises `click.UsageError` where there is none."""
    path = launch.environment.get("PATH")
    if launch.python is not None:
        found = shutil.which(launch.python, path=path)
        if found is None:
            raise click.UsageError(
                f"{launch.python}: no such program: name the Python of the training with --python"
            )
        return os.path.abspath(found)
    for word in launch.command:
        if word == launch.script:
            break
        if Path(word).name in ("torchrun", "accelerate", "accelerate-launch"):
            launcher = shutil.which(word, path=path)
            beside = Path(launcher).parent / "python" if launcher is not None else None
            if beside is not None and os.access(beside, os.X_OK):
                return str(beside)
    return sys.executable


def _judged(found: Rehearsal, settings: Settings) -> tuple[Result, ...]:
    wanted = chosen(settings)
    # Why it ended is told whatever was selected: that there is no answer is no pass.
    told = "MEM041" if found.oom is not None else "MEM040" if found.problem is not None else None
    checks = [c for c in registry().checks if c.code in CODES and (wanted.includes(c.code) or c.code == told)]
    results = run_checks(checks, Facts({Rehearsal: Known(found, "the rehearsal")}), Options())
    return suppress(results, known_suppressions(settings), datetime.now(timezone.utc).date())
