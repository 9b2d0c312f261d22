"""GPUs of one node that are not alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.engine import job
from fsdp_doctor.engine.devices import by_value, gpu_subject, gpu_words, used
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_thresholds import MEMORY_TOLERANCE, POWER_TOLERANCE_MW, SMALL_MEMORY_FRACTION

GIB = 1 << 30


def _strongest(groups: dict[str, list[Gpu]]) -> list[Gpu]:
    """The model that CUDA enumerates first by default, judged by capability, cores and memory."""

    def strength(gpus: list[Gpu]) -> tuple[tuple[int, int], int, int]:
        g = gpus[0]
        return g.capability or (0, 0), g.cores or 0, g.memory_total or 0

    return max(groups.values(), key=strength)


@check("GPU008", Row.SLOW, needs=(Gpus,), uses=job.USES, tags=("gpu", "consistency"))
def mixed_models(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPU models are mixed on one node.

    What: compares the names of the GPUs that the ranks of this node would use. Fewer ranks than GPUs of
        the strongest model are no fault, because CUDA enumerates that model first.
    Why: FSDP gives each rank an equal shard and every step waits for all: the smallest memory decides
        what fits, the slowest GPU decides the speed, and NCCL picks rings for the weakest links.
    Fix: leave only GPUs of one model visible, or accept the mix with the option for mixed GPUs.
    Sources: PyTorch FSDP documentation (equal shards); CUDA_DEVICE_ORDER in the CUDA programming guide.
    """
    gpus = used(facts[Gpus])
    groups = by_value((g, g.name) for g in gpus if g.name is not None)
    if not groups:
        yield skip("no visible GPU whose name NVML gives")
        return
    if len(groups) == 1:
        yield ok(f"{len(gpus)} x {next(iter(groups))}")
        return
    found = ", ".join(f"{len(v)} x {k} ({gpu_words(v)})" for k, v in groups.items())
    best = _strongest(groups)
    # Unasked, a job takes every visible GPU.
    planned = job.local_ranks(facts, options)
    if options.allow_mixed_gpus:
        yield info(f"{found}: accepted")
        return
    if planned <= len(best) and planned < len(gpus):
        yield info(
            f"{found}; {planned} ranks fit on {gpu_words(best)}",
            expected="CUDA enumerates the strongest model first unless CUDA_DEVICE_ORDER says otherwise",
        )
        return
    others = [g for group in groups.values() if group is not best for g in group]
    largest = max((g.memory_total or 0 for g in best), default=0)
    display = all((g.memory_total or 0) < SMALL_MEMORY_FRACTION * largest for g in others)
    say = warn if display else fail
    indices = ",".join(str(g.index) for g in best)
    yield say(
        found,
        "GPUs of one model",
        subject=gpu_subject(others),
        fix=Fix(
            "Leave only the GPUs of one model visible",
            f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={indices}",
        ),
    )


def _spread(values: Sequence[int], tolerance: float) -> bool:
    return bool(values) and max(values) - min(values) > tolerance


@check("GPU009", Row.OOM, needs=(Gpus,), tags=("gpu", "consistency"))
def mixed_memory(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs of one model differ in memory or power class.

    What: among GPUs of the same name, compares the total memory and the default power limit.
    Why: equal shards need equal memory: the smallest GPU runs out first. A board of a lower power class
        is slower, and every step waits for it.
    Fix: keep GPUs of one variant together in a job, or leave the odd one out.
    Sources: PyTorch FSDP documentation; NVML API reference (memory and power limits).
    """
    gpus = used(facts[Gpus])
    judged = 0
    faulty = False
    for name, group in by_value((g, g.name) for g in gpus if g.name is not None).items():
        sizes = [g.memory_total for g in group if g.memory_total]
        powers = [g.power_default for g in group if g.power_default]
        judged += len(sizes)
        if _spread(sizes, MEMORY_TOLERANCE * max(sizes, default=0)):
            faulty = True
            top = max(sizes)
            small = [g for g in group if g.memory_total and top - g.memory_total > MEMORY_TOLERANCE * top]
            yield warn(
                f"{gpu_words(small)} of {len(group)} x {name}: {min(sizes) / GIB:.1f} GiB, "
                f"the others {top / GIB:.1f} GiB",
                "equal memory on GPUs of one model",
                subject=gpu_subject(small),
                fix=Fix("Plan for the smallest GPU, or leave it out of the job", risk=Risk.SAFE),
            )
        if _spread(powers, POWER_TOLERANCE_MW):
            faulty = True
            most = max(powers)
            weak = [g for g in group if g.power_default and most - g.power_default > POWER_TOLERANCE_MW]
            yield warn(
                f"{gpu_words(weak)} of {len(group)} x {name}: default power limit {min(powers) // 1000} W, "
                f"the others {most // 1000} W",
                "boards of one power class",
                subject=gpu_subject(weak),
                row=Row.SLOW,
                fix=Fix("Put boards of one variant into a job", owner=Owner.ADMIN),
            )
    if not judged:
        yield skip("no visible GPU whose memory size NVML gives")
    elif not faulty:
        yield ok(f"{judged} GPUs: equal memory and power class within each model")
