"""Classes that are named but cannot be units."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import blocks, listed, suggested, unit_name, wrap_fix, wrapped
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, fail, ok
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import UnitPlan


@check("WRP002", Row.START, needs=(UnitPlan,), tags=("wrap",))
def class_not_in_model(facts: Facts, options: Options) -> Iterator[Finding]:
    """A class that should be wrapped is not in the model.

    What: Looks for each class of --wrap, --checkpoint-activations and --ignored-modules among the classes of
        the model's modules.
    Why: Accelerate and Trainer raise "Could not find the transformer layer class to wrap in the model"; a
        policy of one's own silently wraps nothing, and the model is one unit.
    Fix: Name a class of this model's own blocks; configurations are often copied from another model.
    Sources: huggingface/accelerate#1943, #2872; accelerate.utils.dataclasses (set_auto_wrap_policy).
    """
    plan = facts[UnitPlan]
    if not plan.missing and not plan.unknown:
        yield ok(f"{len(plan.wrap)} named classes are in the model")
        return
    absent = [*plan.missing, *(f"{name} ({flag})" for flag, name in plan.unknown)]
    alike = [f"{' or '.join(found)} in place of {name}?" for name, found in plan.near if found]
    yield fail(
        f"no module of class {', '.join(absent)}; {''.join(a + ' ' for a in alike)}repeated blocks: "
        f"{blocks(plan)}",
        "classes of the model's own modules",
        fix=wrap_fix(plan, [*wrapped(plan), *suggested(plan)])
        if plan.missing
        else Fix(f"Name classes of the model: {', '.join(plan.suggested) or blocks(plan)}"),
    )


@check("WRP014", Row.START, needs=(UnitPlan,), tags=("wrap",))
def container_wrapped(facts: Facts, options: Options) -> Iterator[Finding]:
    """A module without a forward is a unit.

    What: Looks for units whose class has no forward of its own: a ModuleList, a ModuleDict, or a class that
        only holds modules.
    Why: Nothing calls it, so that nothing gathers its parameters: FSDP2 refuses a list
        ("fully_shard does not support containers that do not implement forward") and leaves shards to the
        layers in others, FSDP1 fails in the first layer with sizes that do not match.
    Fix: Wrap the blocks inside it.
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_init.py; measured with FSDP1 and FSDP2, torch 2.13.
    """
    plan = facts[UnitPlan]
    found = [i for i, u in enumerate(plan.units) if u.container]
    if plan.api == "ddp" or not found:
        yield ok("DDP gathers nothing" if found else "each unit has a forward")
        return
    inner = [k.kind for i in found for k in plan.units[i].inner[:1]]
    kept = wrapped(plan, without=[plan.units[i].kind for i in found])
    better = list(dict.fromkeys([*kept, *(inner or suggested(plan))]))
    yield fail(
        f"no forward that would gather its parameters: {listed(unit_name(plan, i) for i in found)}",
        "units whose forward is called",
        fix=wrap_fix(plan, better),
    )
