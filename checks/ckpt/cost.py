"""Ways to save and to load that a node has no room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.checkpoint_cost import Cost, CostPlan, Way
from fsdp_doctor.subjects.fact import Facts

GIB = 1 << 30


@check("CKP100", Row.SAVE, needs=(CostPlan,), tags=("checkpoint",))
def saving_fits(facts: Facts, options: Options) -> Iterator[Finding]:
    """There is room to save.

    What: For each way to save the memory of a GPU, of the node with rank 0, and the disk it takes, against
        what is free.
    Why: A full state dict puts the whole model on every GPU or into one host's memory: saving, and not
        training, then runs out of memory, after hours.
    Fix: Save shards with dcp.save; for an export, gather into host memory of rank 0 alone.
    Sources: Torch/distributed/checkpoint, torch/distributed/fsdp of torch 2.13; docs/checkpoint-memory.md.
    """
    yield from _judge(facts[CostPlan], True)


@check("CKP101", Row.LOAD, needs=(CostPlan,), tags=("checkpoint",))
def loading_fits(facts: Facts, options: Options) -> Iterator[Finding]:
    """There is room to load.

    What: For each way to load the memory of a GPU and of the node with rank 0, against what is free.
    Why: Torch.load of a full file on every rank takes ranks per node times its size in host memory; the
        kernel ends the ranks without a message.
    Fix: Load shards with dcp.load, or read on rank 0 and broadcast.
    Sources: Torch/distributed/checkpoint/state_dict.py of torch 2.13; docs/checkpoint-memory.md.
    """
    yield from _judge(facts[CostPlan], False)


def _judge(plan: CostPlan, saves: bool) -> Iterator[Finding]:
    verb = "save" if saves else "load"
    costs = [c for c in plan.costs if c.saves is saves]
    limits = plan.limits
    if limits.host is None and limits.gpu is None and limits.disk is None:
        yield skip("nothing is known of the node's memory", enable="give --host-memory and --gpu-memory")
        return
    asked = [c for c in costs if c.way in plan.chosen]
    short = {c.way: why for c in costs if (why := _short(c, plan))}
    fitting = [c for c in costs if c.way not in short]
    better = next((c for c in fitting if c.advised), None)
    fix = Fix(f"{verb.capitalize()} with {better.call}") if better is not None else None
    expected = f"a way to {verb} that fits ({_have(plan)})"
    for cost in asked:
        if cost.way in short:
            yield fail(f"{cost.call} does not fit: {short[cost.way]}", expected, fix=fix)
        else:
            yield ok(f"{cost.call} fits ({_have(plan)})")
    if asked:
        return
    if plan.chosen:
        yield ok(f"no way to {verb} was asked about")
    elif not fitting:
        yield fail(f"no way to {verb} fits: {_all(costs, short)}", expected)
    elif short:
        words = (
            f"{len(fitting)} of {len(costs)} ways to {verb} fit ({_have(plan)}); not: {_all(costs, short)}"
        )
        advised = any(c.advised for c in fitting)
        if advised:
            yield info(words, expected=expected, fix=fix)
        else:
            yield warn(words, expected, fix=fix)
    else:
        yield ok(f"every way to {verb} fits ({_have(plan)})")


def _all(costs: list[Cost], short: Mapping[Way, str]) -> str:
    return "; ".join(f"{c.way.value} ({c.call}): {short[c.way]}" for c in costs if c.way in short)


def _short(cost: Cost, plan: CostPlan) -> str:
    """What it lacks, in words."""
    limits = plan.limits
    said = []
    if limits.gpu is not None and cost.gpu_per_rank > limits.gpu:
        said.append(f"{_gib(cost.gpu_per_rank)} more on each GPU, {_gib(max(limits.gpu, 0))} are left")
    if limits.host is not None and cost.host_per_node > limits.host:
        said.append(
            f"{_gib(cost.host_per_node)} of host memory on the node of rank 0, {_gib(limits.host)} are free"
        )
    if limits.disk is not None and cost.disk > limits.disk:
        said.append(f"{_gib(cost.disk)} on disk, {_gib(limits.disk)} are free in {limits.disk_path}")
    return " and ".join(said)


def _have(plan: CostPlan) -> str:
    limits = plan.limits
    parts = []
    if limits.gpu is not None:
        parts.append(f"{_gib(max(limits.gpu, 0))} left on a GPU")
    if limits.host is not None:
        parts.append(f"{_gib(limits.host)} of host memory")
    if limits.disk is not None:
        parts.append(f"{_gib(limits.disk)} on disk")
    return ", ".join(parts)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
