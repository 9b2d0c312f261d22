"""What one unit holds together: trained and frozen, several dtypes, tensors that cannot be sharded."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import capacity, count, names, unit_name, unsharded
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.units import ITEM, members, sizes
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan
from fsdp_doctor.tables.units import unit_size as size

MATTERS = 0.001
"""Part of the GPU below which gradients of frozen parameters are not worth another plan."""
PLAIN = ("Parameter", "UninitializedParameter", "DTensor")


@check("WRP003", Row.OOM, needs=(UnitPlan,), tags=("wrap", "lora", "memory"))
def frozen_and_trained(facts: Facts, options: Options) -> Iterator[Finding]:
    """Frozen and trained parameters share a unit.

    What: Looks for units in which some parameters require a gradient and some do not.
    Why: FSDP1 flattens a unit into one parameter: with use_orig_params=False it refuses the mixture, with
        True the gradient of the whole unit exists, for the frozen parameters too. FSDP2 keeps parameters
        apart and pays nothing.
    Fix: Use FSDP2, or wrap what trains (LoRA's layers) apart from what is frozen.
    Sources: Lightning-AI/litgpt#1417, #1538; pytorch/pytorch#91165, #104690; measured with torch 2.13.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    held, each = members(plan), sizes(plan)
    mixed = [i for i, parameters in enumerate(held) if len({p.trainable for p in parameters}) > 1]
    if not mixed:
        yield ok("no unit holds both frozen and trained parameters")
        return
    frozen = sum(each[i].elements - each[i].trainable for i in mixed)
    trained = sum(each[i].trainable for i in mixed)
    said = (
        f"{len(mixed)} of {len(each)} units, such as {unit_name(plan, mixed[-1])}, hold {count(frozen)} "
        f"frozen and {count(trained)} trained parameters together"
    )
    if plan.api == "fsdp2":
        yield info(f"{said}; FSDP2 makes no gradient for the frozen ones")
        return
    apart = Fix(
        "Use FSDP2 (fully_shard), or let the policy wrap the modules that train apart from the frozen ones "
        "(peft: fsdp_auto_wrap_policy)"
    )
    if not plan.use_orig_params:
        yield fail(
            f"{said}; FSDP raises a ValueError for them with use_orig_params=False",
            "uniform requires_grad in each unit, or use_orig_params=True",
            fix=apart,
            row=Row.START,
        )
        return
    worst = max(mixed, key=lambda i: each[i].gathered)
    extra = each[worst].gathered - each[worst].gathered * each[worst].trainable // max(
        1, each[worst].elements
    )
    sharded = sum(
        each[i].shard - each[i].shard * each[i].trainable // max(1, each[i].elements) for i in mixed
    )
    found = (
        f"{said}: gradients of {count(frozen + trained)} elements exist instead of {count(trained)}, "
        f"{size(extra)} more in the backward of {unit_name(plan, worst)} and {size(sharded)} per rank until "
        "zero_grad"
    )
    expected = "frozen and trained parameters in units of their own"
    if extra + sharded <= MATTERS * capacity(plan)[0]:
        yield info(found, expected=expected)
    else:
        yield warn(found, expected, fix=apart)


@check("WRP007", Row.START, needs=(UnitPlan,), tags=("wrap", "precision"))
def mixed_dtypes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Parameters of several dtypes share a unit.

    What: Compares the original dtypes in each unit: of those that train with FSDP2, of all with FSDP1.
    Why: FSDP2 raises "FSDP expects uniform original parameter dtype" in the first forward, FSDP1 "Must
        flatten tensors with uniform dtype" when it wraps.
    Fix: Cast the model to one dtype before it is sharded and leave the rest to the mixed-precision policy.
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; _flat_param.py; torch 2.13.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    clean = True
    for i, parameters in enumerate(members(plan)):
        judged = [
            p for p in parameters if (p.trainable or plan.api == "fsdp1") and (p.dtype in ITEM or p.trainable)
        ]
        by_dtype: dict[str, list[Parameter]] = {}
        for p in judged:
            by_dtype.setdefault(p.dtype, []).append(p)
        if len(by_dtype) < 2:
            continue
        clean = False
        rare = min(by_dtype, key=lambda d: sum(p.elements for p in by_dtype[d]))
        said = ", ".join(f"{d}: {count(sum(p.elements for p in ps))}" for d, ps in by_dtype.items())
        yield fail(
            f"{unit_name(plan, i)} holds parameters of several dtypes ({said} elements); {rare}: "
            f"{names(by_dtype[rare])}",
            "one original dtype per unit",
            fix=Fix("Cast the model to one dtype before it is sharded, such as model.to(torch.float32)"),
            subject=Subject(tensor=by_dtype[rare][0].name),
        )
        return
    if clean:
        yield ok("one dtype in each unit")


@check("WRP017", Row.START, needs=(UnitPlan,), tags=("wrap", "quantisation"))
def quantised(facts: Facts, options: Options) -> Iterator[Finding]:
    """Parameters are quantised or of a class of their own.

    What: Looks for integer dtypes and for subclasses of Parameter.
    Why: FSDP1 cannot flatten integers; FSDP2 shards the first dimension of the packed storage, which only a
        subclass with all-gather extensions understands; sizes that are reckoned by elements and dtype are
        wrong for packed storage.
    Fix: Keep packed weights in a storage dtype that the training uses (bnb_4bit_quant_storage=bfloat16), or
        out of FSDP.
    Sources: Torch/distributed/fsdp/_flat_param.py ("Cannot flatten integer dtype tensors"); bitsandbytes on
        FSDP and QLoRA.
    """
    plan = facts[UnitPlan]
    odd = [p for p in plan.parameters if not p.ignored and (p.dtype not in ITEM or p.kind not in PLAIN)]
    if plan.api == "ddp" or not odd:
        yield ok(
            "DDP replicates parameters as they are stored"
            if odd
            else "all parameters are plain and of floating-point dtypes"
        )
        return
    integers = [p for p in odd if "int" in p.dtype or p.dtype == "bool"]
    kinds = ", ".join(sorted({f"{p.kind} of {p.dtype}" for p in odd}))
    stored = sum(p.elements * p.item_bytes for p in odd)
    found = f"{len(odd)} parameters ({kinds}; {size(stored)} as stored): {names(odd)}"
    fix = Fix(
        "Store packed weights in the dtype of the other parameters (bnb_4bit_quant_storage), or keep their "
        "modules out of FSDP"
    )
    subject = Subject(tensor=odd[0].name)
    if integers and plan.api == "fsdp1":
        yield fail(
            f"{found}; FSDP1 says Cannot flatten integer dtype tensors",
            "floating-point parameters",
            fix=fix,
            subject=subject,
        )
    else:
        yield warn(found, "plain floating-point parameters", fix=fix, subject=subject)


@check("WRP021", Row.START, needs=(UnitPlan,), tags=("wrap",))
def scalars(facts: Facts, options: Options) -> Iterator[Finding]:
    """A parameter is a scalar.

    What: Looks for parameters without dimensions.
    Why: Both FSDP1 and FSDP2 raise "doesn't support scalar parameters": there is no first dimension to shard.
    Fix: Make it a tensor of one element, shape (1,).
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_init.py; fully_sharded_data_parallel.py; torch 2.13.
    """
    plan = facts[UnitPlan]
    found = [p for p in plan.parameters if not p.shape and not p.ignored]
    if plan.api == "ddp" or not found:
        yield ok("no parameter is a scalar" if not found else "DDP replicates scalars like anything else")
        return
    yield fail(
        f"{len(found)} parameters have no dimension: {names(found)}",
        "parameters of at least one dimension",
        fix=Fix(f"Change {found[0].name} to a 1-D tensor of one element"),
        subject=Subject(tensor=found[0].name),
    )
