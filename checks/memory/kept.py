"""What a job keeps that it need not: activations of all blocks, gradients that no microbatch reduced."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import SHARE, judged, places, saving
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.engine.units import sizes
from fsdp_doctor.findings import Finding, Fix, Row, ok
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer, MemoryForecast
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.units import memory_size as size

MOST = 0.5
"""Part of the peak from which activations are what makes it."""
WHOLE = "unsharded gradients"


@check("MEM010", Row.OOM, needs=(MemoryAnswer,), uses=(UnitPlan,), tags=("memory",), cost=Cost.SECONDS)
def activations_make_the_peak(facts: Facts, options: Options) -> Iterator[Finding]:
    """Activations of all blocks are kept.

    What: Adds up what the forward of blocks keeps for their backward at the peak of a configuration that
        does not fit or hardly fits; warns from half of the peak where no activation checkpointing was asked
        for, and says from the replay how high the peak is with the activations of one block at a time.
    Why: Sharding makes parameters, gradients and optimizer states smaller, never activations: more ranks do
        not help.
    Fix: Checkpoint the activations of the blocks: a third more compute at most.
    Sources: torch.utils.checkpoint; torch.distributed.algorithms._checkpoint.checkpoint_wrapper.
    """
    answer, plan = facts[MemoryAnswer], facts.find(UnitPlan)
    if answer.checkpoint or (plan is not None and plan.checkpointed):
        yield ok("activations are checkpointed")
        return
    f = answer.forecast
    gain = saving(f, "activations") if f is not None else ""
    classes = ",".join(plan.suggested) if plan is not None else ""
    flag = f" (--checkpoint-activations {classes})" if classes else ""
    yield from judged(
        facts,
        _of_activations,
        f"below {MOST:.0%} of the peak, or checkpointed",
        lambda: Fix(
            f"Checkpoint the activations of the blocks{flag}: a third more compute at most{gain}",
            "fsdp-doctor dryrun … --advise",
        ),
        "activations are not what fills the GPU",
    )


def _of_activations(f: MemoryForecast) -> tuple[int, str] | None:
    found = f.cause("activations")
    if found is None or found.bytes < MOST * f.highest or len(found.modules) < 2:
        return None
    each = size(found.bytes // len(found.modules))
    return found.bytes, f"activations{places(found)}, about {each} for each block"


@check("MEM011", Row.OOM, needs=(MemoryAnswer,), uses=(UnitPlan,), tags=("memory",), cost=Cost.SECONDS)
def gradients_are_not_sharded(facts: Facts, options: Options) -> Iterator[Finding]:
    """Gradients stay whole until the last microbatch.

    What: Adds up the unsharded gradients at the peak of a configuration that accumulates without reducing
        (--no-sync) and that does not fit or hardly fits; warns from a tenth of the peak.
    Why: Without a reduction each rank keeps the gradients of all parameters whole from one microbatch to the
        next: FSDP2 in the dtype of reduction, FSDP1 in that of the parameters.
    Fix: Reduce in every microbatch: leave out no_sync (FSDP1, accelerate: sync_each_batch=True) or
        set_requires_gradient_sync(False) (FSDP2).
    Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; meta-pytorch/tnt#1057;
        huggingface/accelerate#2531; measured on an H200.
    """
    answer, plan = facts[MemoryAnswer], facts.find(UnitPlan)
    if not answer.no_sync or answer.accumulate < 2 or answer.api == "ddp":
        yield ok("gradients are reduced in every microbatch")
        return
    kept = ""
    if plan is not None:
        sharded = sum(s.shard * s.trainable // max(1, s.elements) for s in sizes(plan))
        kept = f"; sharded they take {size(sharded)}"

    def reason(f: MemoryForecast) -> tuple[int, str] | None:
        held = sum(p.bytes for p in f.peak.parts if p.name == WHOLE)
        if held < SHARE / 2 * f.highest:
            return None
        return held, f"gradients of earlier microbatches, whole on every rank{kept}"

    way = "set_requires_gradient_sync(True)" if answer.api == "fsdp2" else "backward outside of no_sync()"
    yield from judged(
        facts,
        reason,
        "sharded gradients",
        lambda: Fix(
            f"Reduce in every microbatch (without --no-sync; {way}; accelerate: sync_each_batch=True): "
            "a reduce-scatter more for each",
            "fsdp-doctor dryrun … --advise",
        ),
        "unsharded gradients are not what fills the GPU",
    )
