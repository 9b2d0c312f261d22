"""A forecast for people: the peak and what makes it, the steps, and what must fit."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.cli.dryrun_units import parameters
from fsdp_doctor.cli.rules_text import rules_text
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.memory import Assumption, MemoryForecast
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.units import memory_size as size

TENSORS = 6
ASSUMED = 4


def _assumed(page: Page, listed: Sequence[Assumption]) -> None:
    """Values that no shape decides, and what they were taken to be."""
    if not listed:
        return
    page.paragraph([("values that were assumed", "bold")])
    for a in listed[:ASSUMED]:
        times = f", {a.times} times" if a.times > 1 else ""
        where = f" at {a.place}" if a.place else ""
        page.paragraph([(f"{a.what}{where}{times}", "")], first="  ", hang=4)
    if len(listed) > ASSUMED:
        page.paragraph(
            [(f"and {len(listed) - ASSUMED} more (--format json has all)", "")], first="  ", hang=4
        )


def _band(low: int, high: int) -> str:
    """A range of sizes, or the one that both ends read as."""
    return size(low) if size(low) == size(high) else f"{size(low)} to {size(high)}"


def render(forecast: MemoryForecast, plan: UnitPlan, style: Style) -> str:
    """The figures above the findings."""
    page = Page(style)
    group = f" {plan.strategy}" if plan.api != "ddp" else ""
    if plan.api != "ddp" and plan.shard_size != plan.world_size:
        group += f", shards over {plan.shard_size}"
    page.paragraph(
        [
            (
                f"{parameters(plan.elements)} parameters in {len(plan.units)} "
                f"unit{'s' if len(plan.units) > 1 else ''}, "
                f"rank 0 of {plan.world_size} ({plan.api}{group})",
                "bold",
            )
        ]
    )
    lines = [
        f"peak allocated {size(forecast.highest)} ("
        + (f"step {forecast.peak.step}" if forecast.peak.step else "before the first step")
        + f", {forecast.peak.phase}"
        + (f", {forecast.peak.module}" if forecast.peak.module else "")
        + ")",
        "of which " + ", ".join(f"{p.name} {size(p.bytes)}" for p in forecast.peak.parts),
        f"reserved {_band(forecast.reserved_low, forecast.reserved_high)}, with expandable segments "
        f"{size(forecast.reserved_expandable)}; between steps {size(forecast.steady)}",
    ]
    last = forecast.steps[-1]
    lines.append(
        f"forward and backward {size(last.fwd_bwd_peak)}, after backward {size(last.after_backward)}, "
        f"optimizer {size(last.opt_peak)}"
    )
    host = forecast.host
    if host.peak > 1 << 20:
        pinned = f" ({size(host.pinned)} pinned)" if host.pinned else ""
        lines.append(
            f"host memory per rank {size(host.peak)}{pinned}, a node of {host.ranks} {size(host.node)}"
        )
    overhead = forecast.overhead
    before = forecast.preparation > forecast.allocated + forecast.margin
    needed = (
        f"needed {size(forecast.needed)}: allocated, "
        + ("" if before else f"margin {size(forecast.margin)}, ")
        + "context "
        f"{size(overhead.context)}, libraries {size(overhead.libraries)}"
        + (f", NCCL {size(overhead.nccl)}" if overhead.nccl else "")
        + f" ({overhead.basis})"
    )
    if forecast.capacity is not None:
        needed += f"; {forecast.gpu} has {size(forecast.capacity)}"
    lines.append(needed)
    for line in lines:
        page.paragraph([(line, "")], first="  ", hang=4)
    page.paragraph([("largest at the peak", "bold")])
    for h in forecast.peak.holders[:TENSORS]:
        where = f" in {h.module}" if h.module else ""
        page.paragraph(
            [(f"{size(h.bytes * h.count)} = {h.count} x {size(h.bytes)} {h.part}: {h.operator}{where}", "")],
            first="  ",
            hang=4,
        )
    rules_text(page, forecast.rules)
    _assumed(page, forecast.assumptions)
    page.blank()
    return page.text()
