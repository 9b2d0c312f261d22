"""Units against the order in which the model runs, and against activation checkpointing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from fsdp_doctor.checks.wrap._common import count, listed, unit_name, unsharded
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.units import sizes
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.subjects.unit_plan import UnitPlan

UNKNOWN = "the order of execution is not known: "


@check("WRP011", Row.SLOW, needs=(UnitPlan,), tags=("wrap", "checkpointing"))
def nesting(facts: Facts, options: Options) -> Iterator[Finding]:
    """Sharding and activation checkpointing are nested the wrong way round.

    What: Looks for units inside modules whose activations are checkpointed, and for modules that the model's
        own function has sharded already.
    Why: Inside a checkpointed module a unit is freed and gathered once more by the recomputed forward; FSDP1
        has failed so. A parent that is sharded before its child holds the child's parameters itself.
    Fix: Checkpoint the block first and shard it then: the unit around the checkpointed block. Shard children
        before their parents, once.
    Sources: pytorch/pytorch#82203; torchtitan's parallelize_llama (apply_ac before apply_fsdp).
    """
    plan = facts[UnitPlan]
    if plan.sharded:
        yield fail(
            f"{listed(n or 'the root' for n in plan.sharded)} is sharded by the model's own function",
            "a plain module, which is sharded once: children first, the root last",
            fix=Fix("Let the function return the module before FSDP"),
            row=Row.START,
        )
        return
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    inside = [
        (i, path)
        for path in plan.checkpointed
        for i, u in enumerate(plan.units)
        if u.name.startswith(path + ".")
    ]
    if not inside:
        yield ok(
            f"{len(plan.checkpointed)} checkpointed modules, no unit inside one"
            if plan.checkpointed
            else "no activation is checkpointed"
        )
        return
    yield warn(
        f"{len(inside)} units are inside checkpointed modules, such as {unit_name(plan, inside[0][0])} in "
        f"{inside[0][1]}",
        "the checkpointed module within the unit, or the same module",
        fix=Fix("Wrap the class that is checkpointed, so that its unit is around the checkpoint"),
        confidence=Confidence.MEDIUM,
    )


@check("WRP015", Row.WRONG, needs=(UnitPlan,), uses=(MemoryAnswer,), tags=("wrap",))
def never_entered(facts: Facts, options: Options) -> Iterator[Finding]:
    """A unit's forward is never called.

    What: Compares the units with those that the forward of one batch entered.
    Why: Only the call of a unit's forward gathers its parameters: one that is used by another method, such as
        a chunked head or generate, sees shards; one that is not used has no gradients, and its optimizer
        state is missing in checkpoints.
    Fix: Call the module, register the method (register_fsdp_forward_method), or leave it to the root.
    Sources: Torch.distributed.fsdp.register_fsdp_forward_method; replayed forward.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    if plan.order is None:
        yield _unordered(facts)
        return
    each = sizes(plan)
    entered = set(plan.order)
    unused = [
        i
        for i in range(1, len(each))
        if i not in entered and each[i].elements and not plan.units[i].container
    ]
    if not entered or not unused:
        yield ok(f"{len(entered)} units were entered")
        return
    yield warn(
        f"{len(unused)} of {len(each)} units are never entered: {listed(unit_name(plan, i) for i in unused)} "
        f"({count(sum(each[i].elements for i in unused))} parameters)",
        "each unit's forward is called",
        fix=Fix(
            "Call the modules by their forward, register_fsdp_forward_method, or leave them to the root"
            if plan.api == "fsdp2"
            else "Call the modules by their forward, or leave them to the root"
        ),
    )


@check("WRP020", Row.SLOW, needs=(UnitPlan,), uses=(MemoryAnswer,), tags=("wrap", "prefetch"))
def odd_order(facts: Facts, options: Options) -> Iterator[Finding]:
    """Units run in another order than they stand in the model.

    What: Compares the order in which the forward enters units with that of the modules; counts repetitions.
    Why: Forward prefetching by registration, and backward prefetching by the forward's order, then gather a
        unit that is not needed next: it waits in memory, and the one that is needed comes late. A unit that
        is entered twice is gathered twice.
    Fix: Set the order by hand (set_modules_to_forward_prefetch), or register modules as they run.
    Sources: Torch/distributed/fsdp/_fully_shard/_fully_shard.py; _exec_order_utils.py.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    if plan.order is None:
        yield _unordered(facts)
        return
    again = [i for i, n in Counter(plan.order).items() if n > 1 and i]
    first = list(dict.fromkeys(i for i in plan.order if i))
    swapped = [b for a, b in pairwise(first) if b < a]
    if not again and not swapped:
        yield ok(f"{len(first)} units run once each, in the order of the model")
        return
    said = []
    if again:
        times = Counter(plan.order)
        said.append(f"{listed(f'{unit_name(plan, i)} is entered {times[i]} times' for i in again)}")
    if swapped:
        said.append(
            f"{listed(unit_name(plan, i) for i in swapped)} runs before units that stand further ahead"
        )
    yield info(
        "; ".join(said),
        expected="each unit once, in the order of the model",
        fix=Fix(
            "Name the next units by set_modules_to_forward_prefetch and set_modules_to_backward_prefetch"
            if plan.api == "fsdp2"
            else "Register the modules in the order in which they run, or leave forward_prefetch off"
        ),
    )


def _unordered(facts: Facts) -> Finding:
    """The skip where no forward told the order: a replay that failed is another matter than a plan alone."""
    answer = facts.find(MemoryAnswer)
    if answer is not None and answer.problem is not None:
        return skip(f"{UNKNOWN}the replay failed (MEM001)")
    why = facts[UnitPlan].unordered
    given = why and "--batch" not in why
    return skip(
        UNKNOWN + (why or "no forward ran to its end"),
        enable="leave out --plan-only" if given else "give --batch, or leave out --plan-only",
    )
