"""What a GPU counted for the configuration, beside what was predicted."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.subjects.memory_measured import MemoryMeasurement
from fsdp_doctor.tables.units import memory_size as size


@check("MEM008", Row.OOM, needs=(MemoryMeasurement,), tags=("memory",), cost=Cost.SECONDS)
def ran_out_of_memory(facts: Facts, options: Options) -> Iterator[Finding]:
    """The measured run ran out of memory.

    What: `dryrun --on-gpu` runs the configuration on the GPU at hand, as one rank without communication.
    Why: What does not fit alone does not fit beside NCCL's buffers either.
    Fix: Take what `--advise` finds; free the GPU where other processes hold much of it.
    Sources: c10/cuda/CUDACachingAllocator.cpp, the message of an out-of-memory error.
    """
    found = facts[MemoryMeasurement]
    if found.oom is None:
        yield ok(f"peak {size(found.measured)} measured on {found.device.gpu}")
        return
    asked = f", where {size(found.oom.requested)} were asked for" if found.oom.requested else ""
    where = f"{found.oom.phase}, {found.oom.stage}".strip(", ")
    yield fail(
        f"memory ran out in {where}{asked}; {size(found.measured)} were allocated",
        f"all steps within {size(found.device.total)} ({found.device.gpu})",
        fix=Fix("Look which changes save enough", "fsdp-doctor dryrun … --advise"),
    )


@check(
    "MEM009", Row.OOM, needs=(MemoryMeasurement,), uses=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS
)
def measured_is_more_than_predicted(facts: Facts, options: Options) -> Iterator[Finding]:
    """The GPU took more than was predicted.

    What: Compares the measured peak with the predicted one and the margin that the verdict adds.
    Why: The prediction for other sizes and worlds is then too low as well, and says "fits" too easily.
    Fix: Let the operators be measured (--calibrate); the modules that differ are named in the table.
    Sources: doctor/tables/substitutions/.
    """
    found, answer = facts[MemoryMeasurement], facts.find(MemoryAnswer)
    forecast = answer.forecast if answer is not None else None
    if found.oom is not None or forecast is None:
        yield skip("memory ran out before the peak" if found.oom is not None else "there is no forecast")
        return
    over = found.measured - found.predicted
    if over <= forecast.margin:
        yield ok(f"measured {size(found.measured)}, predicted {size(found.predicted)}")
        return
    places = ", ".join(d.module or "outside of modules" for d in found.differences[:3])
    yield warn(
        f"measured {size(found.measured)}, {size(over)} above the prediction"
        + (f": {places}" if places else ""),
        f"at most {size(found.predicted + forecast.margin)}, margin included",
        fix=Fix(
            "Measure its operators, which later predictions then use", "fsdp-doctor dryrun … --calibrate"
        ),
        confidence=Confidence.HIGH,
    )
