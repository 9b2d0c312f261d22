"""`fsdp-doctor check`: judge this machine or a recording before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fsdp_doctor.cli.check_adding import with_checkpoint, with_notes, with_probe
from fsdp_doctor.cli.check_judging import BUDGET, judged
from fsdp_doctor.cli.check_report import report
from fsdp_doctor.cli.check_request import request_of
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.join_options import joining_options, place
from fsdp_doctor.cli.probe_job import job_options
from fsdp_doctor.cli.reporting import deliver, now
from fsdp_doctor.config import MAX_NPROC
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.ranks.context import Alone


@click.command(
    "check",
    short_help="Judge this machine, or a recording of one, before a run.",
    context_settings={"allow_interspersed_args": False},
)
@common("text", "json", "junit", "github", judging=True)
@click.option(
    "--profile",
    type=click.Choice([p.value for p in Profile]),
    help="quick: facts only, 10 s; standard: also a short probe, 60 s; deep: 10 min. [default: standard]",
)
@click.option(
    "--nproc", type=click.IntRange(1, MAX_NPROC), metavar="N", help="Ranks per node that the job will start."
)
@click.option("--nodes", type=click.IntRange(1, 100_000), metavar="N", help="Nodes of the job.")
@click.option(
    "--from",
    "recorded",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="REC",
    help="Judge a recording (folder or zip of `record`) instead of this machine; given again, machines of "
    "one job.",
)
@click.option("--python", metavar="EXE", help="The Python that training uses, where it is another one.")
@click.option(
    "--ckpt", metavar="DIR", help="Where checkpoints go; with --from a path on the recorded machine."
)
@click.option("--script", type=click.Path(path_type=Path), metavar="FILE", help="The training script.")
@click.option("--fix", is_flag=True, help="Show the commands that would fix what was found.")
@click.option("--yes", is_flag=True, help="With --fix: run those that are safe and need no administrator.")
@job_options
@joining_options
@click.option("--allow-mixed-gpus", is_flag=True, help="Different GPUs in one job are intended.")
@click.option("--force", is_flag=True, help="Measure also on GPUs that another process uses.")
@click.argument("launch_command", nargs=-1, type=click.UNPROCESSED, metavar="[-- LAUNCH COMMAND]")
def command(settings: Settings, **own: object) -> int:
    """Judge this machine before a run: driver, GPUs, links, network, storage, Python packages, variables.

    A LAUNCH COMMAND (torchrun …, accelerate launch …, srun …) is read, not run: ranks, nodes, ports and
    the script come from it.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    started = now()
    request = request_of(settings, own)
    where = Alone("a recording") if request.recording else place(request.joining, bool(request.words))
    if isinstance(where, Alone):
        found = with_checkpoint(judged(request, settings, began), request, settings, began)
        if request.recording is None and request.profile is not Profile.QUICK and not where.wanted:
            found = with_probe(found, request, settings, began)
        if where.wanted:
            found = with_notes(found, f"the ranks of this job were not gathered: {where.reason}")
        return deliver(report(request, settings, began, found, started), settings)
    from fsdp_doctor.cli.joining import Joined

    with Joined(
        where,
        request.joining,
        began=began,
        budget=BUDGET[request.profile],
        deadline=settings.deadline,
        checkpoint=request.ckpt,
    ) as joined:
        found = judged(request, settings, began, joined)
        if not joined.leads:
            return joined.follow(found.judgement, found.unjudged)
        found = with_checkpoint(found, request, settings, began, where.world_size)
        more = joined.gather(found.judgement, found.work)
        found = replace(with_notes(found, *joined.notes), unjudged=(*found.unjudged, *more))
        found = replace(found, subjects=replace(found.subjects, expected=tuple(range(where.world_size))))
        code = deliver(report(request, settings, began, found, started), settings)
        joined.finish(code)
        return code
