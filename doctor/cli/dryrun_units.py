"""The units of a plan as a table for people: like units in one line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from fsdp_doctor.engine.units import UnitSize, sizes
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.unit_plan import Unit, UnitPlan
from fsdp_doctor.tables.units import unit_size

LINES = 20
HEAD = ("units", "class", "parameters", "gathered", "shard", "padding", "")


def render(plan: UnitPlan, style: Style) -> str:
    """A line per run of like units, the root first."""
    page = Page(style)
    sharded = f" {plan.strategy}" if plan.api != "ddp" else ""
    split = sharded and plan.shard_size != plan.world_size
    group = f", shards over {plan.shard_size}" if split else ""
    gathered = plan.param_dtype or "their own dtype"
    kinds = f"gathered in {gathered}, reduced in {plan.reduce_dtype or gathered}"
    if plan.api == "ddp":
        kinds = "whole on each"
    page.paragraph([(f"plan: {plan.api}{sharded}, {plan.world_size} ranks{group}, {kinds}", "bold")])
    rows = [HEAD, *_rows(plan)]
    more = len(rows) - 1 - LINES
    rows = rows[: LINES + 1]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEAD))]
    for row in rows:
        cells = [
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        page.paragraph(
            [("  ".join(cells[:-1]) + (f"  {row[-1]}" if row[-1] else ""), "")], first="  ", hang=4
        )
    if more > 0:
        page.paragraph([(f"and {more} more lines (--format json has all)", "")], first="  ", hang=4)
    if plan.missing or (len(plan.units) == 1 and plan.suggested and plan.api != "ddp"):
        page.paragraph([(f"suggested: --wrap {','.join(plan.suggested)}", "")], first="  ", hang=4)
    page.blank()
    return page.text()


def _rows(plan: UnitPlan) -> Iterator[tuple[str, ...]]:
    notes = _notes(plan)
    each = list(zip(plan.units, sizes(plan), notes, strict=True))

    def like(row: tuple[Unit, UnitSize, str]) -> tuple[object, ...]:
        unit, size, note = row
        return unit.kind, unit.parent, size, note

    for _, found in groupby(each, like):
        run = list(found)
        unit, size, note = run[0]
        name = unit.name or "(root)"
        if len(run) > 1:
            name = f"{name} to {run[-1][0].name} ({len(run)})"
        yield (
            name,
            unit.kind,
            parameters(size.elements),
            unit_size(size.gathered),
            unit_size(size.shard),
            f"{size.padding - 1:.1%}" if size.wasted else "-",
            note,
        )


def _notes(plan: UnitPlan) -> list[str]:
    """Frozen, shared, ignored and mixed parameters of each unit, in words."""
    said: list[list[str]] = [[] for _ in plan.units]
    for i, size in enumerate(sizes(plan)):
        if size.elements and size.trainable < size.elements:
            said[i].append(f"{(size.elements - size.trainable) / size.elements:.0%} frozen")
        if len(size.dtypes) > 1 or size.dtypes not in ((), ("float32",)):
            said[i].append("/".join(size.dtypes))
        if plan.order is not None and i and i not in plan.order:
            said[i].append("not entered")
    for p in plan.parameters:
        if 0 <= p.unit < len(said) and p.other_names and len(said[p.unit]) < 6:
            said[p.unit].append(f"{p.name} = {p.other_names[0]}")
    ignored = sum(p.elements for p in plan.parameters if p.ignored)
    if ignored and said:
        said[0].append(f"{parameters(ignored)} ignored, whole on every rank")
    return [", ".join(words) for words in said]


def parameters(n: int) -> str:
    """A number of parameters, to four digits or more."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= unit:
            return f"{n / unit:,.3f}{name}"
    return str(n)
