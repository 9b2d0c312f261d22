"""How finely the model is cut: one unit, units that are too large, too small or uneven."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from fsdp_doctor.checks.wrap._common import (
    TINY,
    blocks,
    capacity,
    count,
    cut,
    inner_words,
    module_of,
    share,
    suggested,
    tiny_kinds,
    unit_name,
    unsharded,
    wrap_fix,
    wrapped,
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
UNEVEN, MATTERS = 3.0, 0.01
"""How many times the median a unit may be, and from which part of the GPU its buffers matter."""


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
    classes = suggested(plan)
    fix = wrap_fix(plan, classes) if classes else _no_blocks(plan)
    if taken > ONE_UNIT * room and plan.capacity is not None:
        yield fail(found, expected, fix=fix)
    else:
        yield warn(found, expected, fix=fix)


def _no_blocks(plan: UnitPlan) -> Fix:
    """What to do with one unit in which nothing repeats."""
    held = members(plan)[0]
    elements = sum(p.elements for p in held)
    largest = max(held, key=lambda p: p.elements)
    if largest.elements > elements / 2:
        return Fix(
            f"{share(largest, elements)}, and a unit gathers its parameters whole, so that no plan makes it "
            "smaller: shard such a table by rows (RowwiseParallel of tensor parallelism)"
        )
    by_module: dict[str, int] = {}
    for p in held:
        module = module_of(p.name)
        by_module[module] = by_module.get(module, 0) + p.elements
    module = max(by_module, key=lambda m: by_module[m])
    if by_module[module] > elements / 2:
        return Fix(
            f"{module} itself holds {count(by_module[module])} parameters, which are gathered together: "
            "make several modules of it that the forward calls one after another, and wrap those"
        )
    inner = inner_words(plan.units[0].inner)
    return Fix(f"Wrap the modules that the forward calls one after another; inside: {inner}")


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
    inner, smaller = plan.units[worst].inner, cut(plan, worst)
    yield warn(
        f"{unit_name(plan, worst)}: {count(each[worst].elements)} parameters, {size(taken)} of buffers for "
        f"it and the next unit, {taken / room:.0%} of {called}; inside: "
        f"{inner_words(inner) or 'nothing smaller'}",
        f"at most {WORKING_SET:.0%} of the GPU",
        fix=wrap_fix(plan, [smaller, *wrapped(plan)]) if smaller else _own_module(plan, worst),
        confidence=Confidence.HIGH if plan.capacity is not None else Confidence.MEDIUM,
    )


def _own_module(plan: UnitPlan, i: int) -> Fix:
    """What to do with a unit that its own parameters make large."""
    held = members(plan)[i]
    if not held:
        return Fix("Make the modules inside it units of their own")
    p = max(held, key=lambda q: q.elements)
    alone = share(p, sum(q.elements for q in held))
    return Fix(
        f"{alone}, and a unit gathers its parameters whole: shard experts by "
        "expert parallelism, or put it and its like into modules of their own that are units"
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
    ordinary = [s.elements for s in each[1:] if s.elements >= TINY]  # WRP010 speaks of the others
    middle = median(ordinary or [s.elements for s in each[1:]])
    if each[worst].elements <= UNEVEN * max(middle, 1):
        yield ok(f"the largest unit has {each[worst].elements / max(middle, 1):.1f}x the median")
        return
    room, called = capacity(plan)
    taken = each[worst].gathered + each[worst].reduced
    if taken <= MATTERS * room:
        yield ok(f"the buffers of the largest unit, {size(taken)}, are {taken / room:.1%} of {called}")
        return
    smaller = cut(plan, worst)
    yield info(
        f"{unit_name(plan, worst)} holds {count(each[worst].elements)} parameters, "
        f"{each[worst].elements / max(middle, 1):.1f}x the median unit of {count(middle)}",
        expected=f"at most {UNEVEN:.0f}x the median",
        fix=wrap_fix(plan, [smaller, *wrapped(plan)])
        if smaller
        else Fix("Nothing inside it can be cut: let the unit before it gather it ahead (prefetching)"),
    )


@check("WRP010", Row.SLOW, needs=(UnitPlan,), tags=("wrap",))
def tiny_units(facts: Facts, options: Options) -> Iterator[Finding]:
    """Units are tiny.

    What: Looks for classes whose units mostly hold fewer than a million parameters.
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
    kinds = tiny_kinds(plan)
    if not kinds:
        yield ok("no class of units has mostly fewer than a million parameters")
        return
    tiny = sum(map(len, kinds.values()))
    said = ", ".join(
        f"{len(found)} x {kind} of {count(median(found))}"
        for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1]))[:4]
    )
    better = [*wrapped(plan, without=kinds), *(c for c in suggested(plan) if c not in kinds)]
    if better:
        fix = wrap_fix(plan, better)
    elif plan.elements <= WORTH_WRAPPING:
        fix = Fix(f"Leave out --wrap: one unit is enough for a model of {count(plan.elements)} parameters")
    else:
        fix = Fix("Join them: wrap the module around them")
    yield info(
        f"{tiny} of {len(each) - 1} units hold few parameters: {said}",
        expected="units of a million parameters and more",
        fix=fix,
    )
