"""The ways to save and to load as a table."""

from __future__ import annotations

from fsdp_doctor.cli.ckpt.tree import size
from fsdp_doctor.report.layout import Page
from fsdp_doctor.report.style import Style
from fsdp_doctor.subjects.checkpoint_cost import Cost, CostPlan

HEAD = ("way", "each GPU", "node of rank 0", "other node", "disk")


def render(plan: CostPlan, held: int, style: Style) -> str:
    """What is known of model and job, and a row per way."""
    page = Page(style)
    nodes = -(-plan.world_size // plan.ranks_per_node)
    largest = f", largest tensor {size(plan.largest)}" if plan.largest else ""
    page.labelled("model", f"parameters {size(plan.parameters)}, optimizer {size(plan.optimizer)}{largest}")
    many = f"{nodes} nodes" if nodes > 1 else "one node"
    page.labelled(
        "job",
        f"{plan.api} on {plan.world_size} ranks, {plan.ranks_per_node} per node, {many}"
        f"; training holds {size(held)} per GPU beside activations",
    )
    page.labelled("machine", _machine(plan))
    if plan.largest is None:
        page.labelled("not known", "the largest tensor, which is added where tensors are gathered one by one")
    page.blank()
    for saves, words in ((True, "to save"), (False, "to load")):
        lines: list[tuple[str, ...]] = [(f"{words}:", *HEAD[1:])]
        shown = [c for c in plan.costs if c.saves is saves]
        lines += [_row(c, plan) for c in shown]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
        for line, cost in zip(lines, (None, *shown), strict=True):
            cells = [
                line[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)),
            ]
            page.raw_lines("  ".join(cells).rstrip(), 0)
            if cost is not None:
                page.paragraph([(f"{cost.call}: {cost.note}", "dim")], first="      ", hang=6)
        page.blank()
    return page.text()


def _machine(plan: CostPlan) -> str:
    limits = plan.limits
    parts = []
    if limits.gpu is not None:
        parts.append(f"{size(max(limits.gpu, 0))} left on a GPU ({limits.gpu_source})")
    if limits.host is not None:
        parts.append(f"{size(limits.host)} of host memory ({limits.host_source})")
    if limits.disk is not None:
        parts.append(f"{size(limits.disk)} free in {limits.disk_path}")
    return ", ".join(parts)


def _row(cost: Cost, plan: CostPlan) -> tuple[str, ...]:
    nodes = plan.world_size > plan.ranks_per_node
    other = cost.host_per_rank * plan.ranks_per_node
    return (
        f"  {cost.way.value}{' *' if cost.advised else ''}",
        _short(cost.gpu_per_rank),
        _short(cost.host_per_node),
        _short(other) if nodes else "-",
        _short(cost.disk) if cost.saves else "-",
    )


def _short(count: int) -> str:
    return f"+{size(count)}" if count else "0"
