"""What is left to the root unit, which is gathered first and freed last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from fsdp_doctor.checks.wrap._common import (
    capacity,
    count,
    inner_words,
    listed,
    module_of,
    tiny_kinds,
    unsharded,
    wrap_fix,
    wrapped,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.units import UnitSize, members, sizes
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan
from fsdp_doctor.tables.units import unit_size as size

OVER_MEDIAN, SHARE, BYTES = 1.5, 0.20, 0.01
MOST, TOO_MUCH = 0.5, 0.25
"""Part of the model in the root, and of the GPU that it takes, from which the plan is as good as none."""
LARGE = 0.1
"""Part of the root from which one of its modules is worth a unit."""


@check("WRP008", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory"))
def root_too_large(facts: Facts, options: Options) -> Iterator[Finding]:
    """The root unit holds a large part of the model.

    What: Compares the parameters that no other unit holds with the median unit and with the whole model.
    Why: The root is gathered first and freed last: its parameters stay whole through the backward, its
        gradients until its end, and its reduction overlaps with nothing.
    Fix: Wrap blocks that were forgotten. Shard a large embedding and head apart: fully_shard(embedding),
        fully_shard([norm, head]). Tied ones stay gathered from the embedding's forward to its backward in any
        plan: untie them, or split the vocabulary by tensor parallelism.
    Sources: Torchtitan's parallelize_llama; torch/distributed/fsdp/_fully_shard/_fsdp_state.py
        (_register_group_forward_hooks: a unit of several modules is freed when all have run).
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
    part = root.elements / total if total > 0 else 0.0
    if not _large(root.elements, root, middle, total, room):
        yield ok(f"the root holds {count(root.elements)} parameters, {part:.0%} of the model")
        return
    taken = root.gathered + root.reduced
    found = (
        f"the root holds {count(root.elements)} parameters ({part:.0%} of the model; the median unit has "
        f"{count(middle)}): {inner_words(plan.units[0].inner)}; {size(taken)} of {called} stay to "
        "the end of the backward"
    )
    expected = f"a root of at most {OVER_MEDIAN}x the median unit or {SHARE:.0%} of the model"
    tied = [p for p in members(plan)[0] if p.other_names]
    free = root.elements - sum(p.elements for p in tied)
    classes = [k.kind for k in plan.left if k.elements >= LARGE * root.elements and k.kind not in plan.wrap]
    if not classes and not _large(free, root, middle, total, room):
        p = max(tied, key=lambda q: q.elements)
        yield info(
            f"{found}; {p.name} and {listed(p.other_names)} are one parameter, which stays gathered from its "
            "first use to its last in any plan",
            expected=expected,
            fix=Fix("Untie the two, or split the vocabulary over ranks by tensor parallelism"),
        )
        return
    fix = (
        wrap_fix(plan, [*wrapped(plan, without=tiny_kinds(plan)), *classes])
        if classes
        else Fix(_apart(plan, members(plan)[0]))
    )
    if part > MOST and taken > TOO_MUCH * room and plan.capacity is not None:
        yield fail(found, expected, fix=fix)
    else:
        yield warn(found, expected, fix=fix)


def _large(elements: int, root: UnitSize, middle: float, total: int, room: int) -> bool:
    """Whether so many of the root's elements are too many."""
    taken = (root.gathered + root.reduced) * elements / max(1, root.elements)
    return elements > OVER_MEDIAN * middle and elements > SHARE * total and taken > BYTES * room


def _apart(plan: UnitPlan, held: Sequence[Parameter]) -> str:
    """How to make the root's large modules units: the last of them with the small ones that run before it."""
    by_module: dict[str, int] = {}
    for p in held:
        if not p.other_names:
            by_module[module_of(p.name)] = by_module.get(module_of(p.name), 0) + p.elements
    modules = list(by_module)
    least = LARGE * sum(by_module.values())
    large = [i for i, m in enumerate(modules) if by_module[m] >= least]
    if not large or modules == ["model"]:
        return "Put parameters of the model itself into modules of their own, and wrap those"
    if plan.api == "fsdp1":
        wrapped_by_hand = ", ".join(f"{modules[i]} = FSDP({modules[i]}, …)" for i in large)
        return f"Wrap the large modules before the root, by their classes or by hand: {wrapped_by_hand}"
    groups = [[modules[i]] for i in large if modules[i] != "model"]
    if len(groups) > 1:
        before = modules[large[-2] + 1 : large[-1]]
        groups[-1] = [*[m for m in before if m != "model"][-1:], *groups[-1]]
    said = ", ".join(
        f"fully_shard([{', '.join(g)}])" if len(g) > 1 else f"fully_shard({g[0]})" for g in groups
    )
    return f"Make the large modules units before the root is one: {said}"
