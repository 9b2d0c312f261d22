"""`fsdp-doctor ckpt check`: will this checkpoint load here, and if not, why and what then?"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import click

from fsdp_doctor.ckpt.path import is_remote
from fsdp_doctor.ckpt.read import DEADLINE, begin
from fsdp_doctor.cli.ckpt.target import target, target_options
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.subjects.load_target import TargetModel

MODEL_SECONDS = 120.0
"""For building the model, where no deadline is given."""
VERIFY_SECONDS = 7 * 24 * 3600.0


@click.command(
    "check",
    short_help="Whether it loads here, and if not, why and what then.",
    context_settings={"allow_interspersed_args": True},
)
@common("text", "json", "junit", "github", judging=True)
@target_options
@click.option("--verify", is_flag=True, help="Read all data once and compare checksums.")
@click.argument("path", metavar="PATH")
@click.argument("launch_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- LAUNCH COMMAND]")
def command(settings: Settings, path: str, launch_command: tuple[str, ...], **own: object) -> int:
    """Judge whether a checkpoint loads: yes, yes resharded, only so, with losses, or no and why.

    Nothing of it is run and no tensor is read. What torch would print is quoted, and the call or conversion
    that helps is named. Ranks come from --world-size, from a LAUNCH COMMAND, which is read and not run, or
    from the job (torchrun, srun) that this runs in.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    if not is_remote(path) and not os.path.lexists(path):
        raise click.UsageError(f"{path}: there is no such file or folder")
    reading = begin(path)
    # Imported while the child reads.
    from fsdp_doctor.cli.ckpt.judged import figures, headline, judge_loading, unjudged
    from fsdp_doctor.cli.reporting import deliver, now
    from fsdp_doctor.cli.sources import interpreter
    from fsdp_doctor.cli.version import tool
    from fsdp_doctor.findings import Report

    started, given = now(), own["python"]
    python = interpreter(given) if isinstance(given, str) else None

    def left(otherwise: float) -> float:
        """Seconds of a given deadline that are left, else of the part's own."""
        if settings.deadline is None:
            return otherwise
        return max(began + settings.deadline - time.monotonic(), 1.0)

    def ask(spec: str, arguments: Mapping[str, object]) -> TargetModel:
        from fsdp_doctor.ckpt.model import ModelError
        from fsdp_doctor.ckpt.model import ask as build

        try:
            return build(spec, arguments, python, left(MODEL_SECONDS))
        except ModelError as error:
            raise click.UsageError(str(error)) from None

    wanted = target(own, launch_command, os.environ, ask)
    index = reading.result(settings.deadline if settings.deadline is not None else DEADLINE)
    more: dict[str, object] = {}
    if own["verify"]:
        from fsdp_doctor.cli.ckpt.verifying import verified

        index, more["verified"] = verified(index, path, time.monotonic() + left(VERIFY_SECONDS))
    loading, results = judge_loading(index, wanted, settings)
    report = Report(
        command="ckpt check",
        results=results,
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": path, "notes": [headline(loading)], **figures(loading), **more},
        unjudged=unjudged(loading),
        strict=settings.strict,
    )
    return deliver(report, settings)
