"""Words and thresholds that all checks of a plan share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from fsdp_doctor.engine.units import sizes
from fsdp_doctor.findings import Finding, Fix, skip
from fsdp_doctor.subjects.unit_plan import Inner, Parameter, UnitPlan
from fsdp_doctor.tables.units import unit_size as size

GIB = 1 << 30
TYPICAL = 80 * GIB
"""Memory of the GPU that is assumed where none was named."""
LISTED = 4
TINY = 1_000_000
"""Elements below which a unit costs more messages than it saves memory."""
SPLITS, SMALLER = 0.25, 0.7
"""Part of a unit that modules of one class must hold, and that one of them may, to make it smaller."""


def count(n: float) -> str:
    """A number of elements."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return f"{n:.0f}"


def capacity(plan: UnitPlan) -> tuple[int, str]:
    """Bytes of the GPU, and how it is called."""
    if plan.capacity is not None and plan.capacity > 0:
        return plan.capacity, f"the GPU's {size(plan.capacity)}"
    return TYPICAL, "an 80 GiB GPU (none was named)"


def unsharded(plan: UnitPlan) -> Finding | None:
    """A skip where there are no units to judge."""
    if plan.api == "ddp":
        return skip("ddp shards nothing")
    if plan.shard_size <= 1:
        return skip(f"{plan.api} {plan.strategy} on {plan.shard_size} rank(s) of a group shards nothing")
    return None


def unit_name(plan: UnitPlan, i: int) -> str:
    """Path of a unit with its class."""
    unit = plan.units[i] if 0 <= i < len(plan.units) else None
    if unit is None:
        return "a unit"
    return f"{unit.name} ({unit.kind})" if unit.name else f"the root ({unit.kind})"


def listed(names: Iterable[str], limit: int = LISTED) -> str:
    """The first names, and how many more there are."""
    given = list(names)
    more = len(given) - limit
    return ", ".join(given[:limit]) + (f" and {more} more" if more > 0 else "")


def names(parameters: Iterable[Parameter]) -> str:
    """The first names of parameters."""
    return listed(p.name for p in parameters)


def tiny_kinds(plan: UnitPlan) -> dict[str, list[int]]:
    """Classes of units that mostly hold few parameters, with the elements of each unit."""
    by_class: dict[str, list[int]] = {}
    for unit, one in list(zip(plan.units, sizes(plan), strict=True))[1:]:
        if one.elements:
            by_class.setdefault(unit.kind, []).append(one.elements)
    return {kind: found for kind, found in by_class.items() if median(found) < TINY}


def share(p: Parameter, elements: int) -> str:
    """How much of some elements one parameter is."""
    return f"{p.name} {list(p.shape)} alone is {p.elements / max(1, elements):.0%} of it"


def module_of(name: str) -> str:
    """The module that holds a parameter, as an expression."""
    path = name.rpartition(".")[0]
    return f"model.{path}" if path else "model"


def wrap_fix(plan: UnitPlan, classes: Sequence[str], why: str = "") -> Fix:
    """How to make the modules of exactly these classes units, in the words of the API; inner ones first."""
    if not classes:
        return Fix(f"Wrap the modules that the forward calls one after another{why}")
    named = ",".join(classes)
    if plan.api == "fsdp1":
        how = f"auto_wrap_policy=ModuleWrapPolicy({{{', '.join(classes)}}})"
    else:
        how = f"fully_shard {', then '.join(f'each {c}' for c in classes)}, then the root"
    return Fix(f"{how} (--wrap {named}; accelerate: fsdp_transformer_layer_cls_to_wrap: {named}){why}")


def wrapped(plan: UnitPlan, without: Iterable[str] = ()) -> list[str]:
    """The classes of --wrap that the model has, but for some."""
    left_out = {*plan.missing, *without}
    return [c for c in plan.wrap if c not in left_out]


def blocks(plan: UnitPlan) -> str:
    """The repeated blocks of the model with their sizes."""
    rows = [f"{r.kind} ({r.count} x {count(r.elements / max(1, r.count))})" for r in plan.repeated]
    return listed(rows) or "none"


def inner_words(inner: Iterable[Inner]) -> str:
    """The modules inside a unit with their sizes."""
    return listed(f"{i.kind} ({i.count} x {count(i.elements / max(1, i.count))})" for i in inner)


def suggested(plan: UnitPlan) -> list[str]:
    """Classes to wrap that are not wrapped yet."""
    there = wrapped(plan)
    return [c for c in plan.suggested if c not in there]


def cut(plan: UnitPlan, i: int) -> str:
    """The class inside a unit whose modules, as units of their own, make it clearly smaller; "" for none."""
    elements = sum(p.elements for p in plan.parameters if p.unit == i and not p.ignored)
    for k in plan.units[i].deeper or plan.units[i].inner[:1]:
        if k.elements < SPLITS * elements:
            return ""
        if k.elements <= SMALLER * elements * max(1, k.count):
            return k.kind
    return ""
