"""`dryrun --advise`, `--compare`, `--max-batch`, `--max-seq`: replays of other configurations of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import click

from fsdp_doctor.cli.dryrun_waiting import Work, waiting
from fsdp_doctor.memory.advice.advise import Base, advise, changes_of
from fsdp_doctor.memory.advice.scale import OWN, Scale, ScaleError, scale
from fsdp_doctor.memory.advice.search import Found, Point, largest
from fsdp_doctor.memory.advice.strategies import Strategy, strategies
from fsdp_doctor.memory.advice.trial import Outcome, Refusal, outcomes, takes
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.many import Machine
from fsdp_doctor.memory.replay import Replay
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.memory_advice import MemoryAdvice
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.gpu_memory import GIB, Product

LIMITS = ("--max-batch", "--max-seq")
ROUNDS = 6
"""Replays that a search for the largest batch takes, as a rule."""


def advice_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that try other configurations."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Callable[..., int]], Callable[..., int]], ...] = (
    click.option(
        "--advise",
        is_flag=True,
        help="Also replay single changes of the configuration, and rank those that save memory.",
    ),
    click.option(
        "--compare", is_flag=True, help="Also replay this model under each strategy and DDP, as one table."
    ),
    click.option(
        "--max-batch",
        is_flag=True,
        help="Also search the largest microbatch that fits --gpu, by the batch function's own argument.",
    ),
    click.option("--max-seq", is_flag=True, help="The same for the length of sequences."),
    click.option(
        "--batch-arg",
        metavar="NAME",
        help="The argument of the batch function that is the number of sequences. [default: batch, "
        "batch_size and the like]",
    ),
    click.option(
        "--seq-arg", metavar="NAME", help="The one that is their length. [default: seq, seq_len and the like]"
    ),
)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of one argument that fits."""

    flag: str
    scale: Scale
    found: Found
    capacity: int
    """Bytes of the GPU."""


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy, and what came of it."""

    strategy: Strategy
    outcome: Outcome | Refusal


@dataclass(frozen=True, slots=True)
class Extra:
    """What was asked for beyond the forecast."""

    advice: MemoryAdvice | None = None
    rows: tuple[Row, ...] = ()
    largest: tuple[Largest, ...] = ()
    unjudged: tuple[str, ...] = field(default=())


def check_options(own: Mapping[str, object], gpu_named: bool) -> None:
    """Raises `click.UsageError` for what cannot be answered."""
    limits = [f for f in LIMITS if own[_key(f)]]
    if limits and not gpu_named:
        raise click.UsageError(f"{limits[0]} needs --gpu: a product such as 'H100 80GB', or a number of GiB")
    asked = [f for f in ("--advise", "--compare", *LIMITS) if own[_key(f)]]
    if asked and own["plan_only"]:
        raise click.UsageError(f"{asked[0]} replays steps: leave out --plan-only")


def base_of(
    job: Job, plan: UnitPlan, forecast: MemoryForecast, gpu: Product | None, done: Replay | None
) -> Base:
    """The configuration as it is, with what its replay told of the batch function and of time."""
    about = done.about if done is not None else {}
    stages = about.get("stages")
    start = stages.get("importing torch") if isinstance(stages, Mapping) else None
    start, whole = (float(v) if isinstance(v, (int, float)) else 0.0 for v in (start, about.get("seconds")))
    known = takes(done) if done is not None else {}
    return Base(job, plan, forecast, gpu, known, max(0.0, whole - start), start)


def extra(base: Base, machine: Machine, own: Mapping[str, object]) -> Extra:
    """Everything that the options ask for; what will be done is told on standard error."""
    named = {flag: _text(own[_key(OWN[flag])]) for flag in LIMITS}
    works = tuple(_works(base, own, named["--max-batch"]))
    with waiting(works, base.seconds, base.start) as begins:
        return _extra(base, machine, own, named, begins)


def _works(base: Base, own: Mapping[str, object], batch_arg: str | None) -> Iterator[Work]:
    """What will be replayed, in its order."""
    if own["compare"]:
        count = sum(not s.why_not for s in strategies(base.job, base.plan))
        yield Work("--compare", f"{count} strategies", count)
    for flag in LIMITS:
        if own[_key(flag)]:
            yield Work(flag, f"some {ROUNDS} values", ROUNDS, ROUNDS // 2)
    if own["advise"]:
        count = len(changes_of(base, batch_arg))
        yield Work("--advise", f"{count} changes", count)


def _extra(
    base: Base,
    machine: Machine,
    own: Mapping[str, object],
    named: Mapping[str, str | None],
    begins: Callable[[str], Callable[[int, int], None] | None],
) -> Extra:
    said: list[str] = []
    machine = replace(machine, shown=begins("--compare"))
    rows = tuple(_compared(base, machine)) if own["compare"] else ()
    said += [f"--compare: {r.strategy.name}: there was no time" for r in rows if _unfinished(r.outcome)]
    found: list[Largest] = []
    for flag in [flag for flag in LIMITS if own[_key(flag)]]:
        answer = _limit(base, replace(machine, shown=begins(flag)), flag, named[flag])
        if isinstance(answer, Largest):
            found.append(answer)
            if not answer.found.confirmed:
                said.append(f"{flag}: {answer.found.why}")
        else:
            said.append(answer)
    machine = replace(machine, shown=begins("--advise"))
    advice = advise(base, machine, named["--max-batch"]) if own["advise"] else None
    if advice is not None:
        said += [f"--advise: there was no time for: {c}" for c in advice.untried]
    return Extra(advice, rows, tuple(found), tuple(said))


def _limit(base: Base, machine: Machine, flag: str, named: str | None) -> Largest | str:
    try:
        by = scale(flag, named, base.takes, base.job)
    except ScaleError as error:
        return str(error)
    assert base.gpu is not None
    start = Point(by.value, base.forecast.needed)

    def measure(values: Sequence[int]) -> dict[int, Point]:
        jobs = [by.job(base.job, v) for v in values]
        points = {}
        for value, outcome in zip(values, outcomes(jobs, base.gpu, machine), strict=True):
            if isinstance(outcome, Outcome):
                points[value] = Point(value, outcome.needed)
            elif outcome.why is not None:
                points[value] = Point(value, None, outcome.why)
        return points

    capacity = int(base.gpu.gib * GIB)
    return Largest(flag, by, largest(measure, start, capacity, by.step), capacity)


def _compared(base: Base, machine: Machine) -> Iterator[Row]:
    """Each strategy once; what does not apply, with the reason."""
    every = strategies(base.job, base.plan)
    tried = [s for s in every if not s.why_not]
    found = {
        s.name: o for s, o in zip(tried, outcomes([s.job for s in tried], base.gpu, machine), strict=True)
    }
    for strategy in every:
        yield Row(strategy, found.get(strategy.name, Refusal(strategy.why_not)))


def _unfinished(outcome: Outcome | Refusal) -> bool:
    return isinstance(outcome, Refusal) and outcome.why is None


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _text(value: object) -> str | None:
    return str(value) if value is not None else None
