"""From a probe to its findings, and what its commands share."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.output import is_terminal
from fsdp_doctor.cli.probe_text import render as figures_text
from fsdp_doctor.cli.reporting import rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.findings import Report, Result, Status
from fsdp_doctor.probe.forecast import Job, forecast
from fsdp_doctor.probe.report_data import data
from fsdp_doctor.probe.report_step import step_data
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Facts, Known, Unknown
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.probe import ProbeResult
from fsdp_doctor.subjects.scheduler import Identity
from fsdp_doctor.subjects.step import StepForecast

FAMILY = "PRB"
FEW_CORES, CPU_RANKS = 4, 4
Step = StepForecast | Unknown
NO_JOB = Unknown("no step was forecast: no job was described", "give --units and --tokens", absent=True)


def selected(settings: Settings) -> tuple[CheckSpec, ...]:
    """The probe's checks that the selection leaves."""
    wanted = chosen(settings)
    return tuple(c for c in registry().checks if c.family == FAMILY and wanted.includes(c.code))


def findings(facts: Facts, settings: Settings) -> tuple[Result, ...]:
    """What the selected checks say of these facts."""
    today = datetime.now(timezone.utc).date()
    results = run_checks(selected(settings), facts, Options())
    return suppress(results, known_suppressions(settings), today)


@dataclass(frozen=True, slots=True)
class Judged:
    """A probe with all that is concluded from it."""

    result: ProbeResult
    fabric: Fabric
    step: Step
    results: tuple[Result, ...]
    data: dict[str, object]
    """The figures as JSON values."""
    unjudged: tuple[str, ...] = ()
    """What was asked for by name and is not known."""


def judged(
    result: ProbeResult, settings: Settings, job: Job | None = None, memory: int | None = None
) -> Judged:
    """What the selected checks say of a probe, and of the step of a job; `memory`: bytes of one GPU."""
    fabric = conclude(result)
    step: Step = NO_JOB
    told: dict[str, object] = {}
    unjudged: tuple[str, ...] = ()
    if job is not None:
        step = forecast(job, result, fabric, memory)
        told = {"step": None if isinstance(step, Unknown) else step_data(step, job)}
        unjudged = (f"--units: {step.reason}",) if isinstance(step, Unknown) else ()
    results = findings(facts_of(result, fabric, step), settings)
    return Judged(result, fabric, step, results, {**data(result, fabric), **told}, unjudged)


def sound(found: Judged) -> bool:
    """Whether the probe ran through and nothing failed, so that a second one is worth its time."""
    return not any(r.status is Status.FAIL for r in found.results) and not found.result.deadline_passed


def with_wrong_data(found: Judged, other: Judged) -> Judged:
    """The findings, and those on wrong data of a probe of the same ranks on other GPUs."""
    wrong = tuple(r for r in other.results if r.row == "wrong" and r.status is Status.FAIL)
    return replace(found, results=(*found.results, *wrong))


def facts_of(result: ProbeResult | Unknown, fabric: Fabric | None = None, step: Step = NO_JOB) -> Facts:
    """What the probe's checks are given."""
    known = "the probe"
    if isinstance(result, Unknown) or fabric is None:
        reason = result if isinstance(result, Unknown) else Unknown("the probe was not judged")
        measured: Known[object] | Unknown = reason
        concluded: Known[object] | Unknown = reason
    else:
        measured, concluded = Known(result, known), Known(fabric, known)
    host = Known(Identity(socket.gethostname(), None, None), known)
    told = step if isinstance(step, Unknown) else Known(step, known)
    return Facts({ProbeResult: measured, Fabric: concluded, StepForecast: told, Identity: host})


def deliver(report: Report, found: Judged | None, settings: Settings) -> int:
    """Write figures and findings, and return the exit status."""
    text = rendered(report, settings)
    if settings.format == "text" and found is not None:
        step = found.step if isinstance(found.step, StepForecast) else None
        text = figures_text(found.result, found.fabric, settings.style(), step) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def visible(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs that CUDA would show to ranks started here, in its order."""
    gpus = facts.find(Gpus)
    if gpus is None:
        return ()
    by_index = {g.index: g for g in gpus.present}
    return (
        tuple(by_index[i] for i in gpus.visible if i in by_index)
        if gpus.visible is not None
        else gpus.present
    )


def cpu_ranks() -> int:
    """Ranks to start where there is no GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return CPU_RANKS if cores >= FEW_CORES else 2


@contextmanager
def shown() -> Iterator[Callable[[str], None]]:
    """Where the ranks are, on standard error, for a person only."""
    if not is_terminal(sys.stderr):
        yield lambda said: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting ranks") as status:
        yield lambda said: status.update(escape(f"probe: {said}"))
