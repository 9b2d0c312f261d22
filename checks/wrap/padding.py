"""Padding of FSDP2: each parameter's first dimension to a multiple of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.wrap._common import capacity, unit_name, unsharded
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.units import item, members, padded_rows, sizes
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.unit_plan import Parameter, UnitPlan
from fsdp_doctor.tables.units import unit_size as size

WARN, FAIL = 1.1, 2.0
MATTERS = 0.001
"""Part of the GPU below which padding is not worth a word."""


@check("WRP005", Row.OOM, needs=(UnitPlan,), tags=("wrap", "memory", "moe"))
def dim0_padding(facts: Facts, options: Options) -> Iterator[Finding]:
    """Padding makes units much larger.

    What: Compares each unit with its size after FSDP2 padded the first dimension of every parameter to a
        multiple of the ranks in a shard group.
    Why: A tensor of 8 experts on 64 ranks is padded to 64: every rank's shard and every gathered and reduced
        buffer are 8 times as large.
    Fix: Shard another dimension (shard_placement_fn), shard over fewer ranks (a hybrid mesh), or use expert
        parallelism.
    Sources: Torch/distributed/fsdp/_fully_shard/_fsdp_param.py; pytorch/torchtitan#1561, #2668.
    """
    plan = facts[UnitPlan]
    if (nothing := unsharded(plan)) is not None:
        yield nothing
        return
    if plan.api != "fsdp2":
        yield ok("FSDP1 pads the flat parameter alone, by less than its alignment and the number of ranks")
        return
    each, held = sizes(plan), members(plan)
    room, called = capacity(plan)
    worst = max(range(len(each)), key=lambda i: each[i].wasted, default=None)
    if worst is None or each[worst].padding <= WARN or each[worst].wasted <= MATTERS * room:
        most = max((s.wasted for s in each), default=0)
        yield ok(f"padding takes at most {size(most)} of a unit's gathered buffer")
        return
    ranks = max(1, plan.shard_size)
    p = max(held[worst], key=lambda q: (padded_rows(q, ranks) - q.elements) * item(plan, q))
    rows = p.shape[0] if p.shape else 1
    found = (
        f"{unit_name(plan, worst)} is gathered {each[worst].padding:.2g}x as large as it is: "
        f"{size(each[worst].wasted)} of padding, {each[worst].wasted / room:.1%} of {called}; most of it for "
        f"{p.name} {list(p.shape)}, whose first dimension {rows} is padded to "
        f"{-(-rows // ranks) * ranks} for {ranks} ranks"
    )
    expected = f"at most {WARN}x"
    subject, fix = Subject(tensor=p.name), Fix(_way(p, plan))
    if each[worst].padding > FAIL:
        yield fail(found, expected, fix=fix, subject=subject)
    else:
        yield warn(found, expected, fix=fix, subject=subject)


def _way(p: Parameter, plan: UnitPlan) -> str:
    ranks = max(1, plan.shard_size)
    other = next((d for d in range(1, len(p.shape)) if p.shape[d] > 0 and p.shape[d] % ranks == 0), None)
    ways: list[str] = []
    if other is not None:
        ways.append(
            f"shard its dimension {other} ({p.shape[other]}): shard_placement_fn returns Shard({other})"
        )
    rows = p.shape[0] if p.shape else 1
    fewer = next((k for k in range(min(ranks - 1, rows), 1, -1) if ranks % k == 0 and rows % k == 0), None)
    if fewer is not None:
        ways.append(f"shard over {fewer} ranks (--shard-size {fewer})")
    ways.append("use expert parallelism for such tensors")
    said = "; or ".join(ways)
    return said[:1].upper() + said[1:]
