"""`fsdp-doctor dryrun`: what a configuration needs of a GPU's memory, without a GPU."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import click

from fsdp_doctor.cli import dryrun_advice, dryrun_advice_text, dryrun_calibration, dryrun_gpu, dryrun_gpu_text
from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.dryrun_options import gpu_of, job_of, job_options
from fsdp_doctor.cli.dryrun_text import render as figures_text
from fsdp_doctor.cli.dryrun_units import render as units_text
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.cli.sources import interpreter
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.memory.advice.advise import Base
from fsdp_doctor.memory.answers import forecast
from fsdp_doctor.memory.calibrate import fields, with_table
from fsdp_doctor.memory.calibration import Table
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.many import Machine
from fsdp_doctor.memory.plan import unit_plan
from fsdp_doctor.memory.replay import Replay, ReplayError
from fsdp_doctor.memory.report_data import data, plan_data
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.fact import Facts, Known, Unknown
from fsdp_doctor.subjects.memory import MemoryAnswer, ReplayProblem
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement
from fsdp_doctor.subjects.rehearsal import Rehearsal
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.gpu_memory import DEFAULT_PROCESSORS, DEFAULT_SM, GIB, PROCESSORS, Product

FAMILIES = ("MEM", "WRP")
ENDING = 1.0
"""Seconds kept for the report."""


@click.command("dryrun", short_help="Predict a configuration's GPU memory, without a GPU.")
@common("text", "json", "junit", "github", judging=True)
@job_options
@dryrun_advice.advice_options
@dryrun_gpu.gpu_options
@dryrun_calibration.calibration_options
@click.option("--python", metavar="EXE", help="The Python that training uses, where it is another one.")
def command(settings: Settings, **own: object) -> int:
    """Predict what one rank allocates, without a GPU and without weights.

    The real FSDP2, FSDP1 or DDP code runs two optimizer steps on fake tensors as rank 0 of N; the caching
    allocator's rules give what torch.cuda.max_memory_allocated would say. The answer names the moment and the
    tensors of the peak and says whether it fits the GPU.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    started = now()
    job, gpu = job_of(own), gpu_of(own)
    dryrun_advice.check_options(own, gpu is not None)
    python = interpreter(str(own["python"])) if own["python"] is not None else sys.executable
    hand, on_gpu = dryrun_gpu.Hand(None, ""), bool(own["on_gpu"]) and not job.plan_only
    calibrating, named = bool(own["calibrate"]) and not job.plan_only, own["calibration"]
    if on_gpu or calibrating:
        hand = dryrun_gpu.look(python, _left(settings, began))
        gpu = dryrun_gpu.chosen(gpu, hand)
    assert named is None or isinstance(named, Path)
    tables = dryrun_calibration.table_for(named, gpu, calibrating)
    if calibrating:
        tables = dryrun_calibration.calibrated(
            job, tables, hand, named is not None, python, _left(settings, began)
        )
    traced = settings.verbose or settings.format != "text"
    asked = ask(job, gpu, python, _left(settings, began), tables.table, traced)
    answer, plan, told = asked.answer, asked.plan, asked.told
    tables = dryrun_calibration.compared(tables, asked.replay, gpu)
    measured: Known[MemoryMeasurement] | Unknown = dryrun_gpu.NOT_ASKED
    if on_gpu:
        measured = dryrun_gpu.measured(
            job,
            asked.replay,
            answer.forecast,
            hand,
            force=bool(own["force"]),
            python=python,
            deadline=_left(settings, began),
        )
        told["measured"] = dryrun_gpu_text.data(measured.value) if isinstance(measured, Known) else None
    extra = dryrun_advice.Extra()
    if answer.forecast is not None:
        told["calibration"] = dryrun_calibration.data(tables)
        if plan is not None:
            base = dryrun_advice.base_of(job, plan, answer.forecast, gpu, asked.replay)
            machine = _machine(base, python, tables.table, settings, began)
            extra = dryrun_advice.extra(base, machine, own)
            told.update(dryrun_advice_text.data(extra))
    facts = Facts(
        {
            MemoryAnswer: Unknown("only the plan was asked for", "leave out --plan-only", absent=True)
            if job.plan_only and answer.problem is None
            else Known(answer, "the dry-run"),
            UnitPlan: Known(plan, "the dry-run")
            if plan is not None
            else Unknown("the model could not be read", late=False),
            MemoryMeasurement: measured,
        }
    )
    report = Report(
        command="dryrun",
        results=_judged(facts, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data=told,
        unjudged=(
            *dryrun_gpu.unjudged(on_gpu, measured),
            *dryrun_calibration.unjudged(tables),
            *extra.unjudged,
        ),
        strict=settings.strict,
    )
    text = rendered(report, settings)
    if settings.format == "text" and isinstance(measured, Known):
        text = dryrun_gpu_text.render(measured.value, settings.style()) + text
    if settings.format == "text" and plan is not None:
        text = units_text(plan, settings.style()) + text
        if answer.forecast is not None:
            text = dryrun_advice_text.render(extra, settings.style()) + text
            text = dryrun_calibration.render(tables, settings.style()) + text
            text = figures_text(answer.forecast, plan, settings.style()) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one configuration."""

    answer: MemoryAnswer
    plan: UnitPlan | None
    told: dict[str, object]
    """The report's figures."""
    replay: Replay | None = None


def ask(
    job: Job,
    gpu: Product | None,
    python: str,
    deadline: float | None,
    table: Table | None = None,
    traced: bool = True,
) -> Asked:
    """The answer, and the plan where there is one; with the traceback of what failed if it is wanted."""
    capacity = int(gpu.gib * GIB) if gpu is not None else None

    def answer(**more: object) -> MemoryAnswer:
        return MemoryAnswer(
            api=job.api,
            strategy=job.strategy,
            world_size=job.world_size,
            optimizer=job.optimizer,
            accumulate=job.accumulate,
            no_sync=job.no_sync,
            offload=job.offload,
            wrap=job.wrap,
            checkpoint=job.checkpoint,
            **more,  # type: ignore[arg-type]
        )

    try:
        sm = gpu.sm if gpu is not None else DEFAULT_SM
        processors = gpu.processors if gpu is not None else None
        done = with_table(job, table, sm=sm, processors=processors, python=python, deadline=deadline)
    except ReplayError as error:
        file, _, line = error.place.rpartition(":")
        problem = ReplayProblem(
            error.kind,
            error.text,
            file or None,
            int(line) if line.isdigit() else None,
            error.trace if traced else "",
            error.lacks,
        )
        if error.plan is None:
            return Asked(answer(problem=problem), None, {})
        plan = unit_plan(error.plan, job, capacity)
        return Asked(answer(problem=problem), plan, plan_data(plan, job))
    plan = unit_plan(done.about, job, capacity)
    if job.plan_only:
        told = plan_data(plan, job)
        told["torch"], told["plan_seconds"] = plan.torch, done.about.get("seconds")
        return Asked(answer(), plan, told)
    found = forecast(done, job, gpu)
    told = data(found, plan, job)
    told["torch"], told["replay_seconds"] = done.about.get("torch"), done.about.get("seconds")
    told["replay_rss_bytes"] = done.about.get("rss_bytes")
    return Asked(answer(forecast=found), plan, told, done)


def _machine(base: Base, python: str, table: Table | None, settings: Settings, began: float) -> Machine:
    """Where further replays run: for the same GPU and with the same measured entries."""
    sm = base.gpu.sm if base.gpu is not None else DEFAULT_SM
    processors = base.gpu.processors if base.gpu is not None else PROCESSORS.get(sm, DEFAULT_PROCESSORS)
    until = None if settings.deadline is None else began + settings.deadline - ENDING
    return Machine(python, {"sm": sm, "processors": processors}, fields(table, sm), until)


def _left(settings: Settings, began: float) -> float | None:
    return None if settings.deadline is None else max(1.0, began + settings.deadline - time.monotonic() - 1.0)


def _telling(facts: Facts) -> tuple[str, ...]:
    """The checks that say why there is no answer: whatever was selected, its absence is no pass."""
    answer = facts.find(MemoryAnswer)
    if answer is None or answer.problem is None:
        return ()
    return ("MEM001", "WRP002") if answer.problem.kind == "class" else ("MEM001",)


def _judged(facts: Facts, settings: Settings) -> tuple[Result, ...]:
    wanted, told = chosen(settings), _telling(facts)
    checks = [
        c
        for c in registry().checks
        if c.family in FAMILIES and Rehearsal not in c.needs and (wanted.includes(c.code) or c.code in told)
    ]
    results = run_checks(checks, facts, Options())
    return suppress(results, known_suppressions(settings), datetime.now(timezone.utc).date())
