"""How finely the model is cut: one unit, units that are too large, too small or uneven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from fsdp_doctor.checks.wrap._common import (
    blocks,
    capacity,
    count,
    inner_words,
    suggested,
    unit_name,
    unsharded,
    wrap_fix,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.units import members, sizes
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.units import unit_size as size

WORTH_WRAPPING = 100_000_000
"""Elements below which one unit costs little."""
ONE_UNIT = 0.25
WORKING_SET = 0.15
"""Part of the GPU that the buffers of one unit may take."""
SPLITS = 0.25
"""Part of a unit that modules inside it must hold, for units of them to make it smaller."""
ROOT_OVER_MEDIAN, ROOT_SHARE, ROOT_BYTES = 1.5, 0.20, 0.01
UNEVEN = 3.0
TINY = 1_000_000


@check("WRP001", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory"))
def single_unit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The whole model is one unit.

    What: Counts the units; with one, compares the gathered parameters and the buffer that reduces their
        gradients with the GPU's memory.
    Why: FSDP gathers a unit as a whole: with one unit every rank holds all parameters in forward and all
        gradients in backward, and nothing overlaps.
    Fix: Wrap the repeated blocks: fully_shard each, or an auto_wrap_policy.
    Sources: Torch.distributed.fsdp; measured: peak = between steps + gathered + reduced of all parameters.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    one = sizes(plan)[0] if plan.units else None
    if one is None or len(plan.units) > 1 or plan.missing:
        yield ok(f"{len(plan.units)} units")
        return
    if one.elements <= WORTH_WRAPPING:
        yield ok(f"one unit of {count(one.elements)} parameters, which is small")
        return
    room, called = capacity(plan)
    taken = one.gathered + one.reduced
    found = (
        f"one unit of {count(one.elements)} parameters: {size(one.gathered)} gathered and "
        f"{size(one.reduced)} of gradients to reduce at once, {taken / room:.0%} of {called}; "
        f"repeated blocks: {blocks(plan)}"
    )
    expected = f"a unit per block, each far below {ONE_UNIT:.0%} of the GPU"
    fix = wrap_fix(plan, suggested(plan))
    if taken > ONE_UNIT * room and plan.capacity is not None:
        yield fail(found, expected, fix=fix)
    else:
        yield warn(found, expected, fix=fix)


@check("WRP006", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory", "moe"))
def unit_too_large(facts: Facts, options: Options) -> Iterator[Finding]:
    """One unit's buffers take a large part of the GPU.

    What: Takes the largest unit below the root: its gathered parameters twice (it and the one that is
        prefetched) and the buffer that reduces its gradients, against the GPU's memory.
    Why: A block of many experts is gathered whole although each token visits few of them.
    Fix: Make the experts, or the largest modules inside the block, units of their own.
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py; torchtitan's expert units.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    each = sizes(plan)
    below = range(1, len(each))
    worst = max(below, key=lambda i: each[i].gathered, default=None)
    if worst is None:
        yield ok("there is no unit below the root")
        return
    room, called = capacity(plan)
    taken = 2 * each[worst].gathered + each[worst].reduced
    if taken <= WORKING_SET * room:
        yield ok(f"at most {size(taken)} of buffers for two units, {taken / room:.1%} of {called}")
        return
    inner = plan.units[worst].inner
    splits = bool(inner) and inner[0].elements >= SPLITS * each[worst].elements
    yield warn(
        f"{unit_name(plan, worst)}: {count(each[worst].elements)} parameters, {size(taken)} of buffers for "
        f"it and the next unit, {taken / room:.0%} of {called}; inside: "
        f"{inner_words(inner) or 'nothing smaller'}",
        f"at most {WORKING_SET:.0%} of the GPU",
        fix=wrap_fix(plan, [inner[0].kind], ", besides the block itself")
        if splits
        else _own_module(plan, worst),
        confidence=Confidence.HIGH if plan.capacity is not None else Confidence.MEDIUM,
    )


def _own_module(plan: UnitPlan, i: int) -> Fix:
    """What to do with a unit whose own parameters make it large."""
    held = members(plan)[i]
    if not held:
        return Fix("Make the modules inside it units of their own")
    p = max(held, key=lambda q: q.elements)
    return Fix(
        f"No module inside it holds much of it: put {p.name} {list(p.shape)} and its like into a module of "
        "their own that is a unit, or shard the experts by expert parallelism"
    )


@check("WRP008", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory"))
def root_too_large(facts: Facts, options: Options) -> Iterator[Finding]:
    """The root unit holds a large part of the model.

    What: Compares the parameters that no other unit holds with the median unit and with the whole model.
    Why: The root is gathered first and freed last: its parameters stay whole through the backward, its
        gradients until its end, and its reduction overlaps with nothing.
    Fix: Shard a large embedding and head apart: fully_shard(embedding), fully_shard([norm, head]).
    Sources: Torchtitan's parallelize_llama; torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    each = sizes(plan)
    if len(each) < 2:
        yield ok("the root is the only unit (see WRP001)")
        return
    total = sum(s.elements for s in each)
    root, middle = each[0], median(s.elements for s in each[1:])
    room, called = capacity(plan)
    taken = root.gathered + root.reduced
    share = root.elements / total if total > 0 else 0.0
    if root.elements <= ROOT_OVER_MEDIAN * middle or share <= ROOT_SHARE or taken <= ROOT_BYTES * room:
        yield ok(f"the root holds {count(root.elements)} parameters, {share:.0%} of the model")
        return
    tied = [p for p in plan.parameters if p.unit == 0 and p.other_names]
    text = (
        f"{tied[0].name} and {tied[0].other_names[0]} are one parameter: fully_shard their two modules "
        "together, as one unit"
        if tied
        else "Make the embedding a unit, and norm and head another: fully_shard(model.embed), "
        "fully_shard([model.norm, model.head])"
    )
    yield warn(
        f"the root holds {count(root.elements)} parameters ({share:.0%} of the model; the median unit has "
        f"{count(middle)}): {inner_words(plan.units[0].inner)}; {size(taken)} of {called} stay to "
        "the end of the backward",
        f"a root of at most {ROOT_OVER_MEDIAN}x the median unit or {ROOT_SHARE:.0%} of the model",
        fix=Fix(text),
    )


@check("WRP009", Row.SLOW, needs=(UnitPlan,), tags=("wrap",))
def uneven_units(facts: Facts, options: Options) -> Iterator[Finding]:
    """Units are of very different sizes.

    What: Compares the largest unit below the root with the median one.
    Why: Prefetching gathers one unit while the one before computes: the largest neighbours set the memory,
        and a large unit after a small one has little to hide behind.
    Fix: Cut the large ones, or join small ones.
    Sources: Torch.distributed.fsdp, prefetching; SimpleFSDP's bucketing.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    each = sizes(plan)
    if len(each) < 3:
        yield ok("fewer than two units below the root")
        return
    worst = max(range(1, len(each)), key=lambda i: each[i].elements)
    middle = median(s.elements for s in each[1:])
    if each[worst].elements <= UNEVEN * max(middle, 1):
        yield ok(f"the largest unit has {each[worst].elements / max(middle, 1):.1f}x the median")
        return
    yield info(
        f"{unit_name(plan, worst)} holds {count(each[worst].elements)} parameters, "
        f"{each[worst].elements / max(middle, 1):.1f}x the median unit of {count(middle)}",
        expected=f"at most {UNEVEN:.0f}x the median",
        fix=wrap_fix(plan, [plan.units[worst].inner[0].kind] if plan.units[worst].inner else []),
    )


@check("WRP010", Row.SLOW, needs=(UnitPlan,), tags=("wrap",))
def tiny_units(facts: Facts, options: Options) -> Iterator[Finding]:
    """Units are tiny.

    What: Counts units below the root with fewer than a million parameters.
    Why: Each unit costs an all-gather, a reduce-scatter and their copies in every step: small messages are
        bound by latency, and the memory that they save is little.
    Fix: Wrap the block around them rather than its layers.
    Sources: Torch.distributed.fsdp.wrap (size_based_auto_wrap_policy's default is 1e8).
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    each = sizes(plan)
    tiny = [i for i in range(1, len(each)) if each[i].elements < TINY]
    if not tiny:
        yield ok("no unit has fewer than a million parameters")
        return
    kinds = Counter(plan.units[i].kind for i in tiny)
    said = ", ".join(f"{n} x {kind}" for kind, n in kinds.most_common(4))
    better = [c for c in plan.suggested if c not in kinds]
    yield info(
        f"{len(tiny)} of {len(each) - 1} units hold fewer than 1M parameters: {said}",
        expected="units of a million parameters and more",
        fix=wrap_fix(plan, better) if better else Fix("Join them: wrap the module around them"),
    )
