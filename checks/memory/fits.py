"""Whether a configuration fits the GPU that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import SHARE, TIGHT, WAYS, moment, saved, short
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer, MemoryForecast
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.units import memory_size as size

CODES = {"loss": "see MEM003", "scores": "see MEM004", "activations": "see MEM010"}
"""Where what a change saves is said."""


@check("MEM002", Row.OOM, needs=(MemoryAnswer,), uses=(UnitPlan,), tags=("memory",), cost=Cost.SECONDS)
def does_not_fit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The configuration does not fit the GPU.

    What: Compares the predicted peak, a margin for kernel workspaces, the CUDA context, workspaces of
        libraries and NCCL's buffers with the GPU's memory; warns where little is left.
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
    fix = Fix(_advice(answer, f, facts.find(UnitPlan)), "fsdp-doctor dryrun … --advise")
    if not f.fits:
        yield fail(
            f"needs {size(f.needed)} per GPU (allocated {size(f.highest)}); {moment(f)}",
            f"at most {size(f.capacity)} ({f.gpu})",
            fix=fix,
        )
    elif short(f):
        yield warn(
            f"needs {size(f.needed)} of {size(f.capacity)}; {moment(f)}",
            f"below {TIGHT:.0%} of the GPU",
            fix=fix,
            confidence=Confidence.MEDIUM,
        )
    else:
        yield ok(f"needs {size(f.needed)}; {room}")


def _advice(answer: MemoryAnswer, f: MemoryForecast, plan: UnitPlan | None) -> str:
    """The change that takes most away, as far as the parts of the peak say."""
    parts = {p.name: p.bytes for p in f.peak.parts}
    largest = max(parts, key=lambda k: parts[k]) if parts else ""
    if answer.world_size > 1 and (answer.api == "ddp" or answer.strategy == "NO_SHARD"):
        return "Shard: every rank holds all parameters, gradients and optimizer states (FULL_SHARD)"
    if not f.peak.step and answer.wrap:
        return "Take smaller units, or build them one after the other: a unit is whole while it is sharded"
    gathered = sum(parts.get(name, 0) for name in ("FSDP buffers", "gradients", "parameters"))
    if answer.api != "ddp" and not answer.wrap and (not f.peak.step or gathered >= SHARE * f.highest):
        classes = f" {','.join(plan.suggested)}" if plan is not None and plan.suggested else ""
        return f"Wrap the repeated blocks (--wrap{classes}): the whole model is one unit"
    if answer.no_sync and parts.get("unsharded gradients", 0) >= SHARE * f.highest:
        return "Reduce gradients in every microbatch (without --no-sync): each rank holds them unsharded"
    checkpointed = answer.checkpoint or (plan is not None and plan.checkpointed)
    ways = {name: way for name, way in WAYS.items() if name != "activations" or not checkpointed}
    if not checkpointed:
        blocks = f" {','.join(plan.suggested)}" if plan is not None and plan.suggested else ""
        ways["activations"] += f" (--checkpoint-activations{blocks})"
    best = max((c for c in f.causes if c.name in ways), key=lambda c: saved(f, c), default=None)
    if best is not None and saved(f, best) >= SHARE * f.highest:
        return f"{ways[best.name]}: {CODES[best.name]}"
    if largest == "activations" and not checkpointed:
        return f"{ways['activations']}, or take a smaller batch"
    if largest in ("parameters", "optimizer state"):
        return "Shard over more ranks, or keep parameters and optimizer state on the host (--offload)"
    return "Take a smaller batch or shorter sequences, or finer units"
