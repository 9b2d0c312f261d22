"""The ways to shard one model, each with the same precision, checkpointing and batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fsdp_doctor.memory.job import Job, JobError
from fsdp_doctor.subjects.unit_plan import UnitPlan

DDP_FLAGS: dict[str, object] = {
    "bucket_cap_mb": None,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "find_unused_parameters": False,
}


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of a comparison."""

    name: str
    job: Job
    why_not: str = ""
    """Why it does not apply to this job."""


def strategies(job: Job, plan: UnitPlan) -> tuple[Strategy, ...]:
    """DDP first, then FSDP1's and FSDP2's, with the job's units or the suggested ones."""
    return tuple(_checked(name, found) for name, found in _all(job, plan))


def _checked(name: str, job: Job) -> Strategy:
    try:
        job.validate()
    except JobError as error:
        return Strategy(name, job, str(error))
    return Strategy(name, job)


def _all(job: Job, plan: UnitPlan) -> Iterator[tuple[str, Job]]:
    dtype = job.param_dtype or job.autocast
    bare = replace(
        job,
        shard_size=None,
        offload=False,
        forward_prefetch=0,
        backward_prefetch=None,
        limit_all_gathers=True,
        use_orig_params=True,
        **(DDP_FLAGS if job.api != "ddp" else {}),  # type: ignore[arg-type]
    )
    yield (
        "DDP",
        replace(
            bare,
            api="ddp",
            strategy="FULL_SHARD",
            wrap=(),
            ignored=(),
            param_dtype=None,
            reduce_dtype=None,
            autocast=dtype if dtype != job.dtype else job.autocast,
        ),
    )
    sharded = replace(bare, wrap=job.wrap or plan.suggested, **DDP_FLAGS)  # type: ignore[arg-type]
    if job.api == "ddp" and job.autocast:
        sharded = replace(sharded, autocast=None, param_dtype=job.autocast)
    node = job.ranks_on_node if job.shard_size is None else job.shard_size
    one = replace(sharded, api="fsdp1")
    yield "FSDP1 NO_SHARD", replace(one, strategy="NO_SHARD")
    yield "FSDP1 SHARD_GRAD_OP", replace(one, strategy="SHARD_GRAD_OP")
    yield "FSDP1 FULL_SHARD", replace(one, strategy="FULL_SHARD")
    two = replace(sharded, api="fsdp2", strategy="FULL_SHARD")
    if node < job.world_size:
        for strategy in ("_HYBRID_SHARD_ZERO2", "HYBRID_SHARD"):
            yield f"FSDP1 {strategy}, groups of {node}", replace(one, strategy=strategy, shard_size=node)
        kept = replace(two, strategy="SHARD_GRAD_OP", shard_size=node)
        yield f"FSDP2 hybrid, groups of {node}, reshard_after_forward=False", kept
        yield f"FSDP2 hybrid, groups of {node}", replace(two, shard_size=node)
    yield "FSDP2 reshard_after_forward=False", replace(two, strategy="SHARD_GRAD_OP")
    if node < job.world_size:
        yield f"FSDP2 reshard_after_forward={node}", replace(two, strategy=f"RESHARD_INT:{node}")
    yield "FSDP2 reshard_after_forward=True", two
    yield "FSDP2 with CPU offload", replace(two, offload=True)
