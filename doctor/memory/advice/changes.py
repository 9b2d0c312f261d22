"""The single changes of a configuration that can save memory, in the order in which they are tried."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fsdp_doctor.memory.advice.scale import Scale
from fsdp_doctor.memory.job import HYBRID, Job, JobError
from fsdp_doctor.subjects.unit_plan import UnitPlan

LOW = ("bfloat16", "float16")
KEEPING = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
FUSED = {"adamw": "adamw_fused", "adam": "adam_fused", "sgd": "sgd_fused"}


@dataclass(frozen=True, slots=True)
class Change:
    """One change: fields of the job and how the command line says them."""

    words: str
    flags: str
    fields: Mapping[str, object] = field(default_factory=dict)
    note: str = ""
    """What it costs besides compute and communication."""
    ranks: int = 1
    """How many times the GPUs it takes: what needs more is told after what needs none."""

    def of(self, job: Job) -> Job:
        """The changed job."""
        return replace(job, **self.fields)  # type: ignore[arg-type]


def possible(job: Job, plan: UnitPlan, batch: Scale | None) -> tuple[Change, ...]:
    """Changes that apply to a job and that its API takes, the most promising kinds first."""
    return tuple(c for c in _all(job, plan, batch) if c.fields and _valid(c.of(job)))


def _valid(job: Job) -> bool:
    try:
        job.validate()
    except JobError:
        return False
    return True


def _all(job: Job, plan: UnitPlan, batch: Scale | None) -> Iterator[Change]:
    blocks = tuple(plan.suggested)
    named = ",".join(blocks)
    yield from _units(job, blocks, named)
    if not job.checkpoint and not plan.checkpointed and blocks:
        yield Change(
            f"checkpoint the activations of {named}",
            f"--checkpoint-activations {named}",
            {"checkpoint": blocks},
        )
    yield from _precision(job, plan)
    if job.no_sync and job.accumulate > 1:
        yield Change("reduce gradients in every microbatch", "without --no-sync", {"no_sync": False})
    if batch is not None and batch.value > 1 and batch.value % 2 == 0:
        args = {**job.batch_args, batch.name: batch.value // 2}
        yield Change(
            f"half the microbatch ({batch.name} {batch.value // 2}), twice as many of them",
            f"--batch-args '{json.dumps(args)}' --accumulate {2 * job.accumulate}",
            {"batch_args": args, "accumulate": 2 * job.accumulate},
            "smaller products",
        )
    if not job.offload and job.api != "ddp":
        yield Change("keep parameters and optimizer state on the host", "--offload", {"offload": True})
    if job.optimizer in FUSED:
        better = FUSED[job.optimizer]
        yield Change(f"the fused optimizer ({better})", f"--optimizer {better}", {"optimizer": better})
    yield from _ahead(job)
    if job.api != "ddp" and plan.shard_size == job.world_size:
        yield Change(
            f"twice the ranks ({2 * job.world_size})",
            f"--world-size {2 * job.world_size}",
            {"world_size": 2 * job.world_size},
            "twice the GPUs, with the same batch per rank",
            ranks=2,
        )


def _units(job: Job, blocks: tuple[str, ...], named: str) -> Iterator[Change]:
    """Sharding more, and in smaller units."""
    wrap = job.wrap or blocks
    if job.api == "ddp":
        wrapped = f" --wrap {named}" if blocks else ""
        dtypes = {"param_dtype": job.autocast, "autocast": None} if job.autocast else {}
        yield Change(
            "shard with FSDP2" + (f", units of {named}" if blocks else ""),
            f"--api fsdp2{wrapped}" + (f" --param-dtype {job.autocast}" if job.autocast else ""),
            {
                "api": "fsdp2",
                "strategy": "FULL_SHARD",
                "wrap": blocks,
                **dtypes,
                "bucket_cap_mb": None,
                "gradient_as_bucket_view": False,
                "static_graph": False,
                "find_unused_parameters": False,
            },
        )
        if not job.gradient_as_bucket_view:
            yield Change(
                "let gradients be views of the buckets",
                "--gradient-as-bucket-view",
                {"gradient_as_bucket_view": True},
            )
        return
    if not job.wrap and blocks:
        yield Change(f"wrap {named} as units", f"--wrap {named}", {"wrap": wrap})
    hybrid = job.strategy in HYBRID or (job.shard_size or job.world_size) < job.world_size
    if hybrid:
        yield Change(
            f"shard over all {job.world_size} ranks",
            "--strategy FULL_SHARD" + (" without --shard-size" if job.shard_size else ""),
            {"strategy": "FULL_SHARD", "shard_size": None},
        )
    if job.strategy == "_HYBRID_SHARD_ZERO2":
        yield Change("free parameters after forward", "--strategy HYBRID_SHARD", {"strategy": "HYBRID_SHARD"})
    elif job.strategy == "SHARD_GRAD_OP" or job.reshard is not None or job.strategy == "NO_SHARD":
        words = {
            "SHARD_GRAD_OP": "free parameters after forward (reshard_after_forward=True)",
            "NO_SHARD": "shard parameters, gradients and optimizer state",
        }.get(job.strategy, "keep no larger shards between forward and backward")
        yield Change(words, "--strategy FULL_SHARD", {"strategy": "FULL_SHARD"})


def _precision(job: Job, plan: UnitPlan) -> Iterator[Change]:
    full = any(p.dtype == "float32" for p in plan.parameters) and job.dtype not in LOW
    if full and job.param_dtype is None and job.autocast is None:
        if job.api == "ddp":
            yield Change(
                "compute in bfloat16", "--autocast bfloat16", {"autocast": "bfloat16"}, "rounds activations"
            )
        else:
            yield Change(
                "mixed precision: gather and compute in bfloat16, reduce in float32",
                "--param-dtype bfloat16 --reduce-dtype float32",
                {"param_dtype": "bfloat16", "reduce_dtype": job.reduce_dtype or "float32"},
                "rounds activations",
            )
    if job.param_dtype in LOW and job.reduce_dtype == "float32":
        yield Change(
            f"reduce gradients in {job.param_dtype}",
            f"--reduce-dtype {job.param_dtype}",
            {"reduce_dtype": job.param_dtype},
            "rounds the sum of gradients",
        )


def _ahead(job: Job) -> Iterator[Change]:
    """What is gathered before it is needed."""
    if job.forward_prefetch:
        yield Change("gather no unit ahead in forward", "--forward-prefetch 0", {"forward_prefetch": 0})
    if job.api == "fsdp1" and job.backward_prefetch in (None, "pre"):
        yield Change(
            "gather the next unit after the current one's gradients (BACKWARD_POST)",
            "--backward-prefetch post",
            {"backward_prefetch": "post"},
            "less overlap in backward",
        )
    if job.api == "fsdp2" and (job.backward_prefetch or "1") != "1":
        yield Change(
            "gather one unit ahead in backward", "without --backward-prefetch", {"backward_prefetch": None}
        )
    if not job.limit_all_gathers:
        yield Change("limit all-gathers in flight", "--limit-all-gathers", {"limit_all_gathers": True})
