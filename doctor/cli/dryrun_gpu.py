"""`dryrun --on-gpu`: the predicted job on the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import click

from fsdp_doctor.diagnosis.oom import figures
from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.measure import NoGpu, at_hand, measure
from fsdp_doctor.memory.replay import Replay, ReplayError
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.memory import MemoryForecast
from fsdp_doctor.subjects.memory_measured import GpuAtHand, MeasuredOom, MemoryMeasurement
from fsdp_doctor.tables.gpu_memory import GIB, Product
from fsdp_doctor.tables.units import memory_size as size

NOT_ASKED = Unknown("not measured", "--on-gpu, on a machine with a GPU", absent=True)


def gpu_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a measurement."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Callable[..., int]], Callable[..., int]], ...] = (
    click.option(
        "--on-gpu",
        is_flag=True,
        help="Also run the job on the first visible GPU, as rank 0 of N with real tensors, and compare.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Measure even where the prediction is larger than what the GPU has free.",
    ),
)


@dataclass(frozen=True, slots=True)
class Hand:
    """What is there to measure on: the GPU, or why there is none."""

    gpu: GpuAtHand | None
    why: str = ""

    @property
    def product(self) -> Product | None:
        """The GPU as tables name one."""
        found = self.gpu
        return None if found is None else Product(found.gpu, "", found.total / GIB, found.sm, measured=True)


def look(python: str, deadline: float | None) -> Hand:
    """The GPU at hand."""
    try:
        return Hand(at_hand(python, deadline))
    except (NoGpu, ReplayError) as error:
        return Hand(None, f"there is no GPU to measure on: {error}")


def chosen(named: Product | None, hand: Hand) -> Product | None:
    """The GPU to predict for. Raises `click.UsageError` for another architecture than the one at hand."""
    found = hand.product
    if named is not None and found is not None and named.sm != found.sm:
        raise click.UsageError(
            f"--gpu {named.name}: the GPU at hand is a {found.name}, which chooses other kernels; "
            "leave out --gpu or --on-gpu"
        )
    return named or found


def measured(
    job: Job,
    predicted: Replay | None,
    forecast: MemoryForecast | None,
    hand: Hand,
    *,
    force: bool,
    python: str,
    deadline: float | None,
) -> Known[MemoryMeasurement] | Unknown:
    """The measurement, or why there is none."""
    if hand.gpu is None:
        return Unknown(hand.why, "run it where torch sees a GPU")
    if predicted is None or forecast is None:
        return Unknown("what cannot be predicted is not measured", "see MEM001")
    needed = forecast.allocated + forecast.margin
    if needed > hand.gpu.free and not force:
        return Unknown(
            f"not started: {size(forecast.allocated)} and a margin of {size(forecast.margin)} are predicted, "
            f"and {hand.gpu.gpu} has {size(hand.gpu.free)} of {size(hand.gpu.total)} free",
            "--force runs it all the same",
        )
    try:
        found = measure(job, predicted, python=python, deadline=deadline)
    except ReplayError as error:
        where = f" ({error.place})" if error.place else ""
        return Unknown(f"the measurement failed: {error.text}{where}", late=error.kind == "time")
    if found.oom is not None:
        found = replace(found, oom=with_figures(found.oom))
    return Known(found, f"rank 0 of {job.world_size} on {hand.gpu.gpu}")


def with_figures(oom: MeasuredOom) -> MeasuredOom:
    """With the bytes that torch's message names."""
    said, _ = figures(oom.text)
    return replace(
        oom,
        requested=said.get("requested"),
        total=said.get("total"),
        free=said.get("free"),
        allocated=said.get("allocated"),
        unallocated=said.get("unallocated"),
    )


def unjudged(asked: bool, fact: Known[MemoryMeasurement] | Unknown) -> tuple[str, ...]:
    """What was asked for and not done."""
    if not asked or not isinstance(fact, Unknown):
        return ()
    return (f"--on-gpu: {fact.reason}" + (f"; {fact.enable}" if fact.enable else ""),)
