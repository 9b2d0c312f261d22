"""Whether a configuration fits the GPU that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer, MemoryForecast

TIGHT = 0.92
"""Part of the GPU above which little is left for longer batches and fragmentation."""


def size(n: int) -> str:
    """Bytes in GiB, or MiB below one."""
    return f"{n / 2**30:.2f} GiB" if n >= 1 << 30 else f"{n / 2**20:.1f} MiB"


def moment(f: MemoryForecast) -> str:
    """Where the peak is and what it is made of."""
    where = f" in {f.peak.module}" if f.peak.module else ""
    parts = ", ".join(f"{p.name} {size(p.bytes)}" for p in f.peak.parts[:4])
    when = f"{f.peak.phase} of step {f.peak.step}" if f.peak.step else "preparation, before the first step"
    return f"peak in {when}{where}" + (f": {parts}" if parts else "")


@check("MEM002", Row.OOM, needs=(MemoryAnswer,), tags=("memory",), cost=Cost.SECONDS)
def does_not_fit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The configuration does not fit the GPU.

    What: Compares the predicted peak, a margin for kernel workspaces, the CUDA context, workspaces of
        libraries and NCCL's buffers with the GPU's memory; warns where only fragmentation could make it fail.
    Why: An out-of-memory error after hours, or in the second step, costs all ranks.
    Fix: Wrap blocks, shard more, checkpoint activations, take a smaller batch, or sync each microbatch.
    Sources: c10/cuda/CUDACachingAllocator.cpp; tables gpu_memory, gpu_overhead.
    """
    answer = facts[MemoryAnswer]
    f = answer.forecast
    if f is None:
        yield skip("there is no forecast")
        return
    if f.capacity is None:
        yield skip(f"no GPU was named; one rank needs {size(f.needed)}", enable='--gpu "H100 80GB"')
        return
    room = f"{f.gpu} has {size(f.capacity)}"
    if not f.fits:
        yield fail(
            f"needs {size(f.needed)} per GPU (allocated {size(f.highest)}); {moment(f)}",
            f"at most {size(f.capacity)} ({f.gpu})",
            fix=Fix(_advice(answer, f), "fsdp-doctor dryrun … --advise"),
        )
    elif f.device > f.capacity:
        yield warn(
            f"fits by {size(f.capacity - f.needed)}, but reserved may reach {size(f.reserved_high)}",
            f"reserved and overhead below {size(f.capacity)}",
            fix=Fix(
                "Let segments grow, which keeps fragments together",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            confidence=Confidence.MEDIUM,
        )
    elif f.needed > TIGHT * f.capacity:
        yield warn(
            f"needs {size(f.needed)} of {size(f.capacity)}; {moment(f)}",
            f"below {TIGHT:.0%} of the GPU",
            fix=Fix(_advice(answer, f), "fsdp-doctor dryrun … --advise"),
            confidence=Confidence.MEDIUM,
        )
    else:
        yield ok(f"needs {size(f.needed)}; {room}")


def _advice(answer: MemoryAnswer, f: MemoryForecast) -> str:
    parts = {p.name: p.bytes for p in f.peak.parts}
    largest = max(parts, key=lambda k: parts[k]) if parts else ""
    if answer.api == "ddp" or answer.strategy == "NO_SHARD":
        return "Shard: every rank holds all parameters, gradients and optimizer states (FULL_SHARD)"
    if not f.peak.step and answer.wrap:
        return "Take smaller units, or build them one after the other: a unit is whole while it is sharded"
    if not answer.wrap:
        return "Wrap the repeated blocks (--wrap): the whole model is gathered at once"
    if largest == "activations" and not answer.checkpoint:
        return "Checkpoint activations of the blocks (--checkpoint-activations), or take a smaller batch"
    if largest in ("parameters", "optimizer state"):
        return "Shard over more ranks, or keep parameters and optimizer state on the host (--offload)"
    if answer.no_sync and answer.accumulate > 1:
        return "Reduce gradients in every microbatch: without it each rank holds them unsharded"
    return "Take a smaller batch or shorter sequences, or finer units"
