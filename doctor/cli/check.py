"""`fsdp-doctor check`: judge this machine or a recording before a run."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.fixes import carry_out, plan
from fsdp_doctor.cli.jobwide import is_jobwide
from fsdp_doctor.cli.join_options import Joining, joining, joining_options, place
from fsdp_doctor.cli.judging import Judgement, Work, judge
from fsdp_doctor.cli.probe_job import job_of, job_options
from fsdp_doctor.cli.reporting import deliver, now
from fsdp_doctor.cli.selecting import chosen, chosen_checks, expired_suppressions, known_suppressions
from fsdp_doctor.cli.sources import (
    PROBE_FACTS,
    Subjects,
    ask_machine,
    interpreter,
    recording,
    recordings,
    this_machine,
)
from fsdp_doctor.cli.unjudged import by_name
from fsdp_doctor.cli.version import tool
from fsdp_doctor.config import MAX_NPROC
from fsdp_doctor.engine.options import Options, Profile
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import PLUGIN_CODE, broken_plugin_results
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.facts.digest import KINDS as DIGEST_KINDS
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.probe.forecast import Job
from fsdp_doctor.ranks.context import Alone
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.storage import Storage

if TYPE_CHECKING:
    from fsdp_doctor.cli.ckpt.preflight import Resumed
    from fsdp_doctor.cli.joining import Joined
    from fsdp_doctor.cli.short_probe import Probed

BUDGET = {Profile.QUICK: 10.0, Profile.STANDARD: 60.0, Profile.DEEP: 600.0}
"""Seconds of a whole command on a live machine where no deadline is given."""
CHECKPOINTS = "CKP"
RECORDING_BUDGET = 600.0
RESERVE = 1.5
"""Seconds at most that are kept of the budget for ending late children and for judging."""
PROBED = "PRB"
"""The family whose checks a short probe is made for."""
MARGIN = 0.1
"""Seconds before the deadline at which judging stops, so that the report is out in time."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for beyond the common options."""

    profile: Profile
    nproc: int | None
    nodes: int | None
    recording: tuple[Path, ...] | None
    python: str | None
    ckpt: str | None
    script: Path | None
    fix: bool
    yes: bool
    allow_mixed_gpus: bool
    force: bool
    joining: Joining
    job: Job | None
    words: tuple[str, ...]


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
    request = _request(settings, own)
    where = Alone("a recording") if request.recording else place(request.joining, bool(request.words))
    if isinstance(where, Alone):
        found = _resuming(judged(request, settings, began), request, settings, began)
        if request.recording is None and request.profile is not Profile.QUICK and not where.wanted:
            found = _probed(found, request, settings, began)
        if where.wanted:
            found = _noting(found, f"the ranks of this job were not gathered: {where.reason}")
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
        found = _resuming(found, request, settings, began, where.world_size)
        more = joined.gather(found.judgement, found.work)
        found = replace(_noting(found, *joined.notes), unjudged=(*found.unjudged, *more))
        found = replace(found, subjects=replace(found.subjects, expected=tuple(range(where.world_size))))
        code = deliver(report(request, settings, began, found, started), settings)
        joined.finish(code)
        return code


def _probed(found: Judged, request: Request, settings: Settings, began: float) -> Judged:
    """What was found, and what a short probe of this machine measures."""
    from fsdp_doctor.cli.short_probe import short_probe

    budget = settings.deadline or BUDGET[request.profile]
    probed = short_probe(
        settings,
        found.judgement.facts,
        request.nproc,
        request.python,
        began + budget - min(MARGIN, budget / 2),
        request.force,
        request.job,
    )
    return replace(found, probed=probed, unjudged=(*found.unjudged, *probed.unjudged))


def _resuming(
    found: Judged, request: Request, settings: Settings, began: float, ranks: int | None = None
) -> Judged:
    """What was found, and whether the checkpoint in --ckpt loads on the ranks of the job."""
    if request.recording is not None or request.ckpt is None:
        return found
    if not any(c.family == CHECKPOINTS for c in found.checks):
        return found
    from fsdp_doctor.cli.ckpt.preflight import resumed
    from fsdp_doctor.cli.ckpt.target import launched

    world, source = ranks, "this job"
    if world is None and found.launch is not None:
        world, source = launched(found.launch), "the launch command"
    if world is None and request.nproc is not None:
        world, source = request.nproc * (request.nodes or 1), "--nproc and --nodes"
    budget = settings.deadline or BUDGET[request.profile]
    until = began + budget - min(MARGIN, budget / 2)
    held = resumed(request.ckpt, world, source, found.judgement.facts, settings, until)
    if held is None:
        return found
    return replace(_noting(found, *held.notes), resumed=held, unjudged=(*found.unjudged, *held.unjudged))


def _noting(found: Judged, *notes: str) -> Judged:
    return replace(found, subjects=replace(found.subjects, notes=(*found.subjects.notes, *notes)))


def _request(settings: Settings, own: dict[str, object]) -> Request:
    """The command's own options with the configuration's values. Raises `click.UsageError`."""
    profile, nproc, ckpt, recorded = own["profile"], own["nproc"], own["ckpt"], own["recorded"]
    python, script, nodes, words = own["python"], own["script"], own["nodes"], own["launch_command"]
    assert isinstance(words, tuple) and isinstance(recorded, tuple)
    request = Request(
        profile=Profile(profile) if profile else settings.config.profile or Profile.STANDARD,
        nproc=nproc if isinstance(nproc, int) else settings.config.nproc,
        nodes=nodes if isinstance(nodes, int) else None,
        recording=recorded or None,
        python=python if isinstance(python, str) else None,
        ckpt=ckpt if isinstance(ckpt, str) else None,
        script=script if isinstance(script, Path) else None,
        fix=bool(own["fix"]),
        yes=bool(own["yes"]),
        allow_mixed_gpus=bool(own["allow_mixed_gpus"]),
        force=bool(own["force"]),
        joining=joining(own),
        job=job_of(own, nproc * nodes if isinstance(nproc, int) and isinstance(nodes, int) else None),
        words=tuple(words),
    )
    if request.yes and not request.fix:
        raise click.UsageError("--yes belongs to --fix")
    if request.job is not None and (request.recording is not None or request.profile is Profile.QUICK):
        unmeasured = "--from" if request.recording is not None else "--profile quick"
        raise click.UsageError(f"--units needs a probe of this machine, which {unmeasured} leaves out")
    if request.recording is None:
        ckpt = request.ckpt or settings.config.ckpt
        python = None if request.python is None else interpreter(request.python)
        return replace(request, ckpt=os.path.abspath(ckpt) if ckpt else None, python=python)
    if request.fix:
        raise click.UsageError("--fix changes this machine; it cannot go with --from")
    if request.python is not None:
        raise click.UsageError("--python asks this machine; a recording holds the answers of its own Python")
    if request.ckpt is not None and not posixpath.isabs(request.ckpt):
        raise click.UsageError("--ckpt with --from is a path on the recorded machine and must be absolute")
    return request


@dataclass(frozen=True, slots=True)
class Judged:
    """What this process found by itself."""

    judgement: Judgement
    subjects: Subjects
    checks: tuple[CheckSpec, ...]
    launch: Launch | None
    work: Work
    unjudged: tuple[str, ...]
    probed: Probed | None = None
    resumed: Resumed | None = None


def judged(request: Request, settings: Settings, began: float, joined: Joined | None = None) -> Judged:
    """Judge a recording or this machine; the time counts from `began` (monotonic)."""
    budget = settings.deadline or (RECORDING_BUDGET if request.recording else BUDGET[request.profile])
    until = joined.judge_until if joined is not None else began + budget - min(MARGIN, budget / 2)
    checks = chosen_checks(settings, request.profile)
    launch, problems = _launch(request.words)
    also: tuple[type[object], ...] = ()
    with ExitStack() as used:
        if request.recording is not None:
            paths = request.recording
            subjects = recording(paths[0]) if len(paths) == 1 else recordings(paths)
        else:
            kinds = {k for c in checks for k in (*c.needs, *c.uses)}
            probing = request.profile is not Profile.QUICK and _probes(settings)
            also = PROBE_FACTS if probing and joined is None else ()
            also = (*also, Storage) if request.ckpt is not None else also
            kinds.update(also)
            if joined is not None and any(is_jobwide(c) for c in checks):
                kinds.update(DIGEST_KINDS)
            left = max(until - time.monotonic(), 0.0)
            patience = max(left - min(RESERVE, left / 2), 0.05)
            asked = ask_machine(kinds, patience, request.python, request.ckpt, launch)
            subjects = this_machine(used.enter_context(closing(asked)))
        work = replace(_work(request, settings, subjects, checks, launch), also=also)
        if joined is not None:
            work = replace(work, joined=True, noted=joined.journal.mark, quiet=not joined.leads)
        judgement = judge(subjects.sources, work, until)
    unjudged = (*problems, *by_name(request, judgement, subjects, checks))
    return Judged(judgement, subjects, checks, launch, work, unjudged)


def _probes(settings: Settings) -> bool:
    wanted = chosen(settings)
    return any(c.family == PROBED and wanted.includes(c.code) for c in registry().checks)


def report(request: Request, settings: Settings, began: float, found: Judged, started: str) -> Report:
    """Everything between what was found and the renderer."""
    results = _with_plugins(found.judgement.merger.results(), settings)
    data = _data(request, found.judgement, found.subjects, found.launch, settings)
    if found.probed is not None:
        families = {r.code[:3] for r in found.probed.results}
        results = (*(r for r in results if r.code[:3] not in families), *found.probed.results)
        data["probe"] = found.probed.data
    if found.resumed is not None and found.resumed.results:
        others = (r for r in results if r.code not in {h.code for h in found.resumed.results})
        results = (*others, *found.resumed.results)
        data["ckpt"] = found.resumed.data
    if request.fix:
        data["fixes"] = carry_out(plan(results), request.yes)
    return Report(
        command="check",
        results=results,
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data=data,
        unjudged=found.unjudged,
        strict=settings.strict,
    )


def _work(
    request: Request,
    settings: Settings,
    subjects: Subjects,
    checks: tuple[CheckSpec, ...],
    launch: Launch | None,
) -> Work:
    options = Options(
        profile=request.profile,
        nproc=request.nproc,
        nodes=request.nodes,
        checkpoint=request.ckpt or subjects.checkpoint,
        allow_mixed_gpus=request.allow_mixed_gpus,
    )
    today = datetime.now(timezone.utc).date()
    gathered = subjects.kind == "recording"
    return Work(checks, options, launch, known_suppressions(settings), today, gathered)


def _launch(words: Sequence[str]) -> tuple[Launch | None, list[str]]:
    if not words:
        return None, []
    try:
        return parse_launch(words, Path.cwd(), os.environ), []
    except LaunchError as error:
        return None, [f"launch command: {error}"]


def _with_plugins(results: tuple[Result, ...], settings: Settings) -> tuple[Result, ...]:
    broken = broken_plugin_results(registry().broken)
    shown = not any(PLUGIN_CODE.startswith(p.strip().upper()) for v in settings.ignore for p in v.split(","))
    return (*broken, *results) if shown else results


def _data(
    request: Request, judgement: Judgement, subjects: Subjects, launch: Launch | None, settings: Settings
) -> dict[str, object]:
    hosts = sorted(judgement.hosts)
    world = judgement.world_size
    recorded = sorted(judgement.ranks)
    here = {*recorded, *(u.rank for u in judgement.unreadable)}
    missing = [r for r in range(world) if r not in here] if world and world > 1 and subjects.expected else []
    data: dict[str, object] = {
        "target": _target(hosts, judgement, subjects),
        "source": {"kind": subjects.kind, "path": subjects.path, "created": judgement.created},
        "profile": request.profile.value,
        "hosts": hosts,
        "ranks": {"world_size": world, "recorded": recorded, "missing": missing},
        "config": str(settings.config.file) if settings.config.file else None,
        "notes": [*subjects.notes, *expired_suppressions(settings)],
    }
    if launch is not None:
        data["launch"] = {
            "launcher": launch.launcher,
            "command": list(launch.command),
            "nproc_per_node": launch.nproc_per_node,
            "nodes": list(launch.nodes) if launch.nodes else None,
            "script": launch.script,
        }
    return data


def _target(hosts: Sequence[str], judgement: Judgement, subjects: Subjects) -> str:
    names = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    ranks = f", {len(judgement.ranks)} ranks" if len(judgement.ranks) > 1 else ""
    if subjects.kind == "live":
        return f"{names}{ranks}" or "this machine"
    when = f" of {judgement.created}" if judgement.created else ""
    return f"{names or subjects.path or ''} (recording{when}{ranks})"
