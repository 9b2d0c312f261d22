"""Parameters that stand in several places of the model."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import count, listed, module_of, unit_name, unsharded
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Fix, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import UnitPlan

REFUSED_SINCE = (2, 13)
"""torch from which FSDP2 refuses a parameter of two groups."""
ADAPTERS = ("lora_embedding_A", "lora_embedding_B", "lora_A", "lora_B", "modules_to_save")
"""What peft puts beside a weight to train: LoRA's matrices, or a copy of the whole module."""


@check("WRP004", Row.START, needs=(UnitPlan,), tags=("wrap", "tied"))
def tied_across_units(facts: Facts, options: Options) -> Iterator[Finding]:
    """A shared parameter belongs to several units.

    What: Finds parameters under several names (tied weights) whose modules are in different units.
    Why: FSDP2 of torch 2.13 refuses it ("is shared with a parameter already managed by another FSDP group");
        before, the last rank's rows could stay stale. FSDP1 has freed the parameter when its second place
        uses it: sizes do not match; with use_orig_params=False it makes two parameters of it.
    Fix: Put both modules into one unit: leave both to the root, or fully_shard([embedding, head]).
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_init.py; pytorch/pytorch#176076; measured, torch 2.13.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    shared = [p for p in plan.parameters if p.other_names and not p.ignored]
    across = [p for p in shared if p.other_units]
    if not across:
        yield ok(f"{len(shared)} shared parameters, each within one unit" if shared else "nothing is shared")
        return
    p = across[0]
    units = listed(unit_name(plan, i) for i in (p.unit, *p.other_units))
    more = f"; {len(across)} such parameters" if len(across) > 1 else ""
    found = (
        f"{p.name} and {listed(p.other_names)} are one parameter in {1 + len(p.other_units)} units: {units}"
    )
    together = ", ".join(dict.fromkeys(module_of(n) for n in (p.name, *p.other_names[:3])))
    fix = Fix(
        f"One unit for both: fully_shard([{together}]), or leave both to the root"
        if plan.api == "fsdp2"
        else f"Leave {together} to the root: take their classes out of the wrap policy"
    )
    expected, subject = "all places of a shared parameter in one unit", Subject(tensor=p.name)
    if plan.api == "fsdp2" and _version(plan.torch) >= REFUSED_SINCE:
        yield fail(f"{found}{more}; torch refuses it", expected, fix=fix, subject=subject)
    elif plan.api == "fsdp1" and plan.use_orig_params:
        yield fail(
            f"{found}{more}; the second place finds it freed (size mismatch)",
            expected,
            fix=fix,
            subject=subject,
        )
    else:
        yield warn(
            f"{found}{more}; FSDP1 makes a parameter of each place, and they diverge"
            if plan.api == "fsdp1"
            else f"{found}{more}; its places can diverge",
            expected,
            fix=fix,
            subject=subject,
            row=Row.WRONG,
            confidence=Confidence.MEDIUM,
        )


def _version(text: str) -> tuple[int, ...]:
    """Major and minor of torch; the newest where it is unknown."""
    parts = text.split(".")[:2]
    return tuple(int(p) for p in parts) if len(parts) == 2 and all(p.isdecimal() for p in parts) else (99, 0)


@check("WRP018", Row.WRONG, needs=(UnitPlan,), tags=("wrap", "lora", "tied"))
def adapter_on_tied(facts: Facts, options: Options) -> Iterator[Finding]:
    """An adapter trains one place of a tied parameter.

    What: Looks for parameters with several names of which one has LoRA's matrices or a trained copy
        (modules_to_save) beside it.
    Why: The embedding gets an update that the tied head does not have: merged or saved, the two differ, and
        loading ties them again and loses one. Under FSDP the two places also fall into different units.
    Fix: Take the embedding and the head out of LoRA's target modules, or untie them and train both.
    Sources: axolotl-ai-cloud/axolotl#3403; peft.tuners.lora (Embedding).
    """
    plan = facts[UnitPlan]
    present = {p.name for p in plan.parameters} | {n for p in plan.parameters for n in p.other_names}
    beside = {n.partition(f".{a}")[0] for n in present for a in ADAPTERS if f".{a}" in n}
    found = []
    for p in plan.parameters:
        places = (p.name, *p.other_names)
        adapted = [n for n in places if _owner(n) in beside]
        if p.other_names and adapted and len(adapted) < len(places):
            found.append((p, adapted, [n for n in places if n not in adapted]))
    if not found:
        yield ok("no adapter stands on a shared parameter")
        return
    p, adapted, rest = found[0]
    yield fail(
        f"{adapted[0]} has an adapter, and the tied {rest[0]} has none ({count(p.elements)} elements)",
        "no adapter on tied embeddings",
        fix=Fix("Leave the embedding out of target_modules, or set tie_word_embeddings=False and train both"),
        subject=Subject(tensor=p.name),
    )


def _owner(name: str) -> str:
    """The adapted module of a parameter: that which holds `base_layer` or `original_module`, or its own."""
    module = name.removesuffix(".weight").removesuffix(".bias")
    return module.removesuffix(".base_layer").removesuffix(".original_module")
