"""What one optimizer step computes and moves, and from it how much slower a change makes it: an estimate.

Bytes between ranks are counted: how often each unit is gathered and reduced, by the padded sizes of the plan.
FLOPs are those of one forward on meta tensors. The seconds are not measured: tables give the rates, and
communication is taken to run behind compute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsdp_doctor.engine.units import sizes
from fsdp_doctor.memory.job import HYBRID, Job
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables import step_costs as costs
from fsdp_doctor.tables.compute_rates import COMPUTE_RATES
from fsdp_doctor.tables.fabric_figures import nvlink_product
from fsdp_doctor.tables.gpu_memory import Product

LOW = ("bfloat16", "float16")
NO_SHARDS = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")


@dataclass(frozen=True, slots=True)
class Work:
    """One step of one rank."""

    forwards: float
    """Times that the forward's FLOPs are computed."""
    flops: float | None
    """Of all of them; None where one forward could not be counted."""
    rate: float
    """FLOP/s that they are computed at."""
    inside: float
    """Bytes that a rank sends between the ranks of a node."""
    between: float
    """Bytes that a rank sends over the network."""
    copied: float
    """Bytes between host and GPU."""
    on_host: float
    """Bytes that the optimizer moves in host memory."""
    nvlink: float
    """Bytes per second inside a node."""

    @property
    def communicated(self) -> float:
        """Bytes that a rank sends to others."""
        return self.inside + self.between

    @property
    def moving(self) -> float:
        """Seconds that communication takes."""
        return self.inside / self.nvlink + self.between / _network(self.nvlink)

    @property
    def hides(self) -> bool:
        """Whether communication takes longer than compute, and hides it."""
        return self.flops is not None and self.moving >= self.flops / self.rate

    @property
    def seconds(self) -> float | None:
        """The step's length, communication hidden behind compute where that is longer."""
        if self.flops is None:
            return None
        computing, moving = self.flops / self.rate, self.moving
        host = self.copied / (costs.PCIE_COPY_GBPS * 1e9) + self.on_host / (costs.HOST_OPTIMIZER_GBPS * 1e9)
        return max(computing, moving) + host


def work(job: Job, plan: UnitPlan, forward_flops: float | None, gpu: Product | None) -> Work:
    """The work of a job. `forward_flops` are those of one microbatch of this job."""
    n = job.accumulate
    again = _recomputed(job, plan)
    forwards = n * (3.0 + again)
    flops = None if forward_flops is None else forwards * forward_flops
    inside, between = _communication(job, plan)
    copied = on_host = 0.0
    if job.offload:
        shard = float(sum(s.shard for s in sizes(plan)))
        elements = sum(s.trainable for s in sizes(plan)) / max(1, plan.shard_size)
        copied = n * (2 if _gathers_again(job) else 1) * shard + (1 if job.no_sync else n) * shard
        on_host = elements * costs.OPTIMIZER_BYTES
    return Work(forwards, flops, _rate(job, plan, gpu), inside, between, copied, on_host, _ring(gpu))


def _recomputed(job: Job, plan: UnitPlan) -> float:
    """The part of the forward that backward repeats, by the parameters of the checkpointed blocks."""
    if not job.checkpoint or not plan.elements:
        return 0.0
    paths = tuple(f"{p}." for p in plan.checkpointed)
    inside = sum(p.elements for p in plan.parameters if p.name.startswith(paths)) if paths else 0
    return inside / plan.elements if inside else 1.0


def _gathers_again(job: Job) -> bool:
    return job.strategy not in (*NO_SHARDS, "NO_SHARD")


def _communication(job: Job, plan: UnitPlan) -> tuple[float, float]:
    """Bytes that a rank sends inside its node and between nodes, in one optimizer step."""
    n, synced = job.accumulate, 1 if job.no_sync else job.accumulate
    units = sizes(plan)
    if job.api == "ddp" or plan.shard_size == 1:
        gradients = sum(p.elements * p.item_bytes for p in plan.parameters if p.trainable)
        return _split(2.0 * synced * gradients, job.world_size, job)
    group, inside, between = plan.shard_size, 0.0, 0.0
    for i, unit in enumerate(units):
        again = _gathers_again(job) and not (i == 0 and job.api == "fsdp1")
        moved = n * float(unit.gathered) + synced * unit.reduced
        a, b = _split(moved, group, job)
        inside, between = inside + a, between + b
        if again:
            a, b = _split(n * float(unit.gathered), job.reshard or group, job)
            inside, between = inside + a, between + b
    replicas = job.world_size // group
    if replicas > 1:
        reduced = 2.0 * synced * sum(u.reduced for u in units) / group * (replicas - 1) / replicas
        if group >= job.ranks_on_node or job.strategy in HYBRID:
            between += reduced
        else:
            inside += reduced
    return inside, between


def _split(moved: float, ranks: int, job: Job) -> tuple[float, float]:
    """A ring's bytes, on its slower kind of link where it spans nodes."""
    sent = moved * (ranks - 1) / max(1, ranks)
    return (sent, 0.0) if ranks <= job.ranks_on_node else (0.0, sent)


def _rate(job: Job, plan: UnitPlan, gpu: Product | None) -> float:
    name = gpu.name if gpu is not None else ""
    row = next((r for r in COMPUTE_RATES if re.search(r.pattern, name)), None)
    peak = row.tflops if row is not None else costs.DEFAULT_TFLOPS
    efficiency = row.efficiency if row is not None else costs.DEFAULT_EFFICIENCY
    low = {job.param_dtype, job.autocast, job.dtype} & set(LOW)
    own = all(p.dtype in LOW for p in plan.parameters) if plan.parameters else False
    return peak * 1e12 * efficiency * (1.0 if low or (own and job.dtype is None) else costs.FP32_RATE)


def _ring(gpu: Product | None) -> float:
    found = nvlink_product(gpu.name) if gpu is not None else None
    return 1e9 * (found.low if found is not None else costs.PCIE_RING_GBPS)


def slowdown(before: Work, after: Work) -> float | None:
    """How much longer a step takes: 0.3 for 30 %, below 0 for a shorter one."""
    a, b = before.seconds, after.seconds
    if a is None or b is None or a <= 0:
        return None
    return b / a - 1


def words(before: Work, after: Work) -> str:
    """What a change costs in counted quantities."""
    said = []
    compute = after.forwards / before.forwards - 1
    if abs(compute) > 0.005:
        hidden = " hidden behind communication" if before.hides and after.hides else ""
        said.append(f"{compute:+.0%} compute{hidden}")
    if after.rate != before.rate:
        said.append(f"products at {after.rate / before.rate:.3g} times the rate")
    moved = after.communicated - before.communicated
    if abs(moved) > max(1 << 20, 0.005 * before.communicated):
        said.append(f"{'+' if moved > 0 else '-'}{size(abs(moved))} sent per rank and step")
    if after.copied:
        said.append(f"{size(after.copied)} copied to and from the host per step")
        said.append("the optimizer runs on the host")
    return ", ".join(said) or "no more compute or communication"


def size(n: float) -> str:
    """Bytes in GiB, or MiB below one."""
    return f"{n / 2**30:.2f} GiB" if n >= 1 << 30 else f"{n / 2**20:.1f} MiB"


def _network(ring: float) -> float:
    """Bytes per second between nodes: a ring over several nodes passes through each of them, too."""
    return min(costs.NETWORK_GBPS * 1e9, ring)


def basis(gpu: Product | None) -> str:
    """What the estimates stand on."""
    ring = _ring(gpu)
    known = gpu is not None and any(re.search(r.pattern, gpu.name) for r in COMPUTE_RATES)
    name = f"the rate of {gpu.name}" if gpu is not None and known else "an A100's rate"
    return (
        f"slowdowns are estimates: FLOPs of one forward at {name}, bytes counted from the plan, "
        f"{ring / 1e9:.0f} GB/s inside a node, {_network(ring) / 1e9:.0f} GB/s per rank between nodes, "
        "communication behind compute"
    )
