"""Tries changes of a configuration and ranks what helps: bytes saved against how much slower a step gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsdp_doctor.memory.advice import cost
from fsdp_doctor.memory.advice.changes import Change, possible
from fsdp_doctor.memory.advice.scale import Scale, ScaleError, scale
from fsdp_doctor.memory.advice.trial import Outcome, Refusal, Size, outcomes, sized_outcomes
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.many import Machine
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.memory_advice import SIMULATED, MeasuredChange, MemoryAdvice
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.gpu_memory import Product

LEAST, SHARE = 1 << 20, 0.005
"""A change helps if it saves this many bytes and this part of the peak."""
EFFORT = 0.03
"""Slowdown that any change counts as, so that the free ones are ranked by what they save."""
UNKNOWN = 0.2
"""Slowdown that is taken for the order, where none can be estimated."""
TOGETHER = 4
"""Most changes that are tried together."""


@dataclass(frozen=True, slots=True)
class Base:
    """The configuration as it is."""

    job: Job
    plan: UnitPlan
    forecast: MemoryForecast
    gpu: Product | None
    takes: Mapping[str, object] = field(default_factory=dict)
    """The arguments of the batch function, with their defaults where these are numbers."""
    seconds: float = 0.0
    """What the replay of it took, without the import of torch, which took `start`."""
    start: float = 0.0


def changes_of(base: Base, batch_arg: str | None = None) -> tuple[Change, ...]:
    """What `advise` tries."""
    return possible(base.job, base.plan, batch_scale(base.job, base.takes, batch_arg))


def advise(base: Base, machine: Machine, batch_arg: str | None = None) -> MemoryAdvice:
    """The advice, from as many replays as time allows."""
    changes = changes_of(base, batch_arg)
    size, tried = sized_outcomes(base.job, [c.of(base.job) for c in changes], base.gpu, machine)
    before = cost.work(base.job, base.plan, size.flops, base.gpu)
    helping: list[tuple[Change, MeasuredChange]] = []
    no_help: list[str] = []
    refused: list[tuple[str, str]] = []
    untried: list[str] = []
    for change, found in zip(changes, tried, strict=True):
        if isinstance(found, Refusal):
            if found.why is None:
                untried.append(change.words)
            else:
                refused.append((change.words, found.why))
            continue
        row = _row(base, before, size, change, found)
        if row.saves >= max(LEAST, SHARE * base.forecast.allocated):
            helping.append((change, row))
        else:
            no_help.append(change.words)
    helping.sort(key=order)
    together = _together(base, before, size, helping, machine)
    rows = [row for _, row in helping]
    segments = _segments(base)
    if segments is not None:
        rows.append(segments)
    return MemoryAdvice(
        tuple(rows), together, tuple(no_help), tuple(refused), tuple(untried), cost.basis(base.gpu)
    )


def order(pair: tuple[Change, MeasuredChange]) -> tuple[int, float]:
    """Where a change stands in the list: those on the GPUs that there are, and among them by their worth."""
    change, row = pair
    return change.ranks, -worth(row)


def worth(row: MeasuredChange) -> float:
    """Bytes saved against the slowdown."""
    slower = UNKNOWN if row.slowdown is None else max(0.0, row.slowdown)
    return row.saves / (EFFORT + slower)


def batch_scale(job: Job, takes: Mapping[str, object], named: str | None) -> Scale | None:
    """The argument that halves a microbatch; None where none is known."""
    try:
        return scale("--max-batch", named, takes, job)
    except ScaleError:
        return None


def _row(base: Base, before: cost.Work, size: Size, change: Change, found: Outcome) -> MeasuredChange:
    flops = size.flops
    if flops is not None and found.job.batch_args != base.job.batch_args:
        flops *= base.job.accumulate / found.job.accumulate  # the same samples in smaller parts
    after = cost.work(found.job, found.plan, flops, base.gpu)
    said = cost.words(_same_forwards(base, before, found), after)
    return MeasuredChange(
        change.words,
        change.flags,
        found.allocated,
        base.forecast.allocated - found.allocated,
        found.needed,
        found.fits,
        cost.slowdown(before, after),
        ", ".join(s for s in (said, change.note) if s),
    )


def _same_forwards(base: Base, before: cost.Work, found: Outcome) -> cost.Work:
    """The work before, with its forwards counted in the microbatches of the changed job."""
    if found.job.batch_args == base.job.batch_args:
        return before
    return replace(before, forwards=before.forwards * found.job.accumulate / base.job.accumulate)


def _together(
    base: Base,
    before: cost.Work,
    size: Size,
    helping: Sequence[tuple[Change, MeasuredChange]],
    machine: Machine,
) -> MeasuredChange | None:
    """The best changes at once, where none makes it fit alone: two of them, then three, until it fits."""
    if base.gpu is None or base.forecast.fits is not False or any(row.fits for _, row in helping):
        return None
    chosen = _compatible([change for change, _ in helping])[:TOGETHER]
    groups = [chosen[:n] for n in range(2, len(chosen) + 1)]
    merged = [Change(_joined(g, " and "), _joined_flags(g), _merged(g), _notes(g)) for g in groups]
    best: MeasuredChange | None = None
    for change, found in zip(
        merged, outcomes([c.of(base.job) for c in merged], base.gpu, machine), strict=True
    ):
        if isinstance(found, Outcome):
            best = _row(base, before, size, change, found)
            if best.fits:
                return best
    return best


def _compatible(changes: Sequence[Change]) -> list[Change]:
    """Those of which no two change the same field."""
    taken: set[str] = set()
    kept: list[Change] = []
    for change in changes:
        if not taken & set(change.fields):
            taken |= set(change.fields)
            kept.append(change)
    return kept


def _merged(group: Sequence[Change]) -> Mapping[str, object]:
    fields: dict[str, object] = {}
    for change in group:
        fields.update(change.fields)
    return fields


def _joined(group: Sequence[Change], by: str) -> str:
    return by.join(c.words for c in group)


def _joined_flags(group: Sequence[Change]) -> str:
    return " ".join(c.flags for c in group)


def _notes(group: Sequence[Change]) -> str:
    return ", ".join(c.note for c in group if c.note)


def _segments(base: Base) -> MeasuredChange | None:
    """Expandable segments, which change what is reserved and not what is allocated."""
    f = base.forecast
    saved = f.reserved_high - f.reserved_expandable
    if saved < max(LEAST, SHARE * f.reserved_high):
        return None
    return MeasuredChange(
        "expandable segments: less reserved for the same allocated bytes",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        f.allocated,
        0,
        f.needed,
        f.fits,
        0.0,
        f"reserved at most {cost.size(f.reserved_expandable)} in place of {cost.size(f.reserved_high)}",
        SIMULATED,
    )
