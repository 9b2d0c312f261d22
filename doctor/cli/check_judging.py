"""What `check` finds on this machine or in a recording: facts, judged within the time that there is."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_doctor.cli.check_request import Request
from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.jobwide import is_jobwide
from fsdp_doctor.cli.judging import Judgement, Work, judge
from fsdp_doctor.cli.selecting import chosen, chosen_checks, known_suppressions
from fsdp_doctor.cli.sources import (
    PROBE_FACTS,
    Subjects,
    ask_machine,
    recording,
    recordings,
    this_machine,
)
from fsdp_doctor.cli.unjudged import by_name
from fsdp_doctor.engine.options import Options, Profile
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.facts.digest import KINDS as DIGEST_KINDS
from fsdp_doctor.facts.launch import LaunchError, parse_launch
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.storage import Storage

if TYPE_CHECKING:
    from fsdp_doctor.cli.ckpt.preflight import Resumed
    from fsdp_doctor.cli.joining import Joined
    from fsdp_doctor.cli.short_probe import Probed

BUDGET = {Profile.QUICK: 10.0, Profile.STANDARD: 60.0, Profile.DEEP: 600.0}
"""Seconds of a whole command on a live machine where no deadline is given."""
RECORDING_BUDGET = 600.0
"""The same of a recording, which asks no machine that may hang."""
RESERVE = 1.5
"""Seconds at most that are kept of the budget for ending late children and for judging."""
PROBED = "PRB"
"""The family whose checks a short probe is made for."""
MARGIN = 0.1
"""Seconds before the deadline at which judging stops, so that the report is out in time."""


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
    until = joined.judge_until if joined is not None else _ends(budget, began)
    checks = chosen_checks(settings, request.profile)
    launch, problems = _launch(request.words)
    also: tuple[type[object], ...] = ()
    with ExitStack() as used:
        if request.recording is not None:
            paths = request.recording
            subjects = recording(paths[0]) if len(paths) == 1 else recordings(paths)
        else:
            also = _for_later(request, settings, joined is not None)
            kinds = {*_declared(checks, joined is not None), *also}
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


def _declared(checks: Sequence[CheckSpec], joined: bool) -> set[type[object]]:
    """Facts that the checks ask for, and those of which a job's ranks exchange digests."""
    kinds = {kind for check in checks for kind in (*check.needs, *check.uses)}
    if joined and any(is_jobwide(c) for c in checks):
        kinds.update(DIGEST_KINDS)
    return kinds


def _for_later(request: Request, settings: Settings, joined: bool) -> tuple[type[object], ...]:
    """Facts that no check declares, of the short probe and of the checkpoint's folder."""
    probing = not joined and request.profile is not Profile.QUICK and _probes(settings)
    return (*(PROBE_FACTS if probing else ()), *((Storage,) if request.ckpt is not None else ()))


def measuring_ends(request: Request, settings: Settings, began: float) -> float:
    """When what is measured on this machine has to be done (monotonic)."""
    return _ends(settings.deadline or BUDGET[request.profile], began)


def _ends(budget: float, began: float) -> float:
    return began + budget - min(MARGIN, budget / 2)


def _probes(settings: Settings) -> bool:
    wanted = chosen(settings)
    return any(c.family == PROBED and wanted.includes(c.code) for c in registry().checks)


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
