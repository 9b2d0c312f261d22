"""Replays other configurations beside the one that was asked for, and reads their peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_doctor.memory.answers import _overhead as overhead
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.later import with_another
from fsdp_doctor.memory.many import Machine, replays
from fsdp_doctor.memory.plan import unit_plan
from fsdp_doctor.memory.replay import Replay, ReplayError
from fsdp_doctor.memory.simulate import simulate, steps
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.gpu_memory import GIB, Product
from fsdp_doctor.tables.substitutions import MARGIN


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one configuration."""

    job: Job
    allocated: int
    needed: int
    """With the margin and what a process takes besides, as a dry-run of it would say."""
    fits: bool | None
    reserved: int
    plan: UnitPlan


@dataclass(frozen=True, slots=True)
class Refusal:
    """A configuration that cannot be run, and why; or, without a reason, one that there was no time for."""

    why: str | None


@dataclass(frozen=True, slots=True)
class Size:
    """One forward, unsharded."""

    flops: float | None
    why: str = ""


def outcomes(jobs: Sequence[Job], gpu: Product | None, machine: Machine) -> Iterator[Outcome | Refusal]:
    """One per job, in their order."""
    for job, answer in zip(jobs, replays(jobs, machine), strict=True):
        yield _outcome(job, answer, gpu)


def _outcome(job: Job, answer: Replay | ReplayError | None, gpu: Product | None) -> Outcome | Refusal:
    if answer is None:
        return Refusal(None)
    if isinstance(answer, ReplayError):
        where = f" ({answer.place})" if answer.place else ""
        return Refusal(answer.text + where)
    return of_replay(job, answer, gpu)


def of_replay(job: Job, done: Replay, gpu: Product | None) -> Outcome:
    """The peak of a replay, as `answers.forecast` has it, without its details."""
    run = simulate(with_another(done.events))
    peak = max(max(s.fwd_bwd_peak, s.opt_peak) for s in steps(run.phases))
    needed = peak + int(peak * MARGIN) + overhead(job, gpu).total
    capacity = int(gpu.gib * GIB) if gpu is not None else None
    fits = None if capacity is None else needed <= capacity
    return Outcome(job, peak, needed, fits, run.reserved_peak, unit_plan(done.about, job, capacity))


def sized_outcomes(
    job: Job, jobs: Sequence[Job], gpu: Product | None, machine: Machine
) -> tuple[Size, tuple[Outcome | Refusal, ...]]:
    """The forward of one job, on meta tensors, and in the same child what comes of others."""
    answers = replays([{**job.to_json(), "work": "size"}, *jobs], machine)
    size = _size(next(answers))
    return size, tuple(_outcome(j, a, gpu) for j, a in zip(jobs, answers, strict=True))


def _size(answer: Replay | ReplayError | None) -> Size:
    if not isinstance(answer, Replay):
        return Size(None, answer.text if answer is not None else "there was no time")
    flops = answer.about.get("flops")
    return Size(float(flops) if isinstance(flops, (int, float)) else None, str(answer.about.get("why") or ""))


def takes(done: Replay) -> Mapping[str, object]:
    """The arguments of the batch function, with their defaults where these are numbers."""
    found = done.about.get("arguments")
    return found if isinstance(found, Mapping) else {}
