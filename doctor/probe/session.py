"""A whole probe of this machine's ranks: counters around it, and once more with the GPUs in another order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fsdp_doctor.facts.source import Source
from fsdp_doctor.probe.counters import Counters, read
from fsdp_doctor.probe.launch import Request, self_launch
from fsdp_doctor.probe.tournament import MIB
from fsdp_doctor.subjects.probe import ProbePlan, ProbeResult, RankMeasurement

TURNED_SIZES = (MIB, 64 * MIB)
TURNED_SECONDS = 30.0


def run(request: Request, source: Source) -> ProbeResult:
    """Measure, with the hardware's counters before and after. Raises `ProbeError`."""
    gpus = request.plan.backend == "nccl"
    before = read(source, gpus=gpus)
    result = self_launch(request)
    return with_counters(result, before, read(source, gpus=gpus))


def with_counters(result: ProbeResult, before: Counters, after: Counters) -> ProbeResult:
    """Each GPU's counters at its rank, those of the host at its first rank."""
    first = min((r.rank for r in result.ranks), default=None)
    ranks = tuple(with_counters_of(r, before, after, r.rank == first) for r in result.ranks)
    return replace(result, ranks=ranks)


def with_counters_of(
    rank: RankMeasurement, before: Counters, after: Counters, first: bool
) -> RankMeasurement:
    """A rank with its GPU's counters; the `first` of a host also has the host's."""

    def of(counters: Counters) -> Mapping[str, int]:
        own = counters.gpus.get(rank.gpu_uuid or "", {})
        return {**own, **counters.host} if first else own

    return replace(rank, counters_before=of(before), counters_after=of(after))


def turned(request: Request) -> Request:
    """The same ranks on the next GPU each, for a short look at the data: some faults show only so."""
    order: list[int | str] = list(request.devices or range(request.ranks))
    plan = look_at_data(request.plan)
    return replace(request, plan=plan, devices=tuple(order[1:] + order[:1]), rotated=True)


def look_at_data(plan: ProbePlan) -> ProbePlan:
    """A short plan of the same collectives, for their data and not for their speed."""
    return ProbePlan(
        backend=plan.backend,
        ops=plan.ops,
        sizes=tuple(s for s in plan.sizes if s in TURNED_SIZES) or plan.sizes[:1],
        warmup=1,
        iterations=2,
        iterations_small=2,
        size_seconds=1.0,
        work_repeats=1,
        dtype=plan.dtype,
        deadline_seconds=min(TURNED_SECONDS, plan.deadline_seconds),
        timeout_seconds=plan.timeout_seconds,
    )
