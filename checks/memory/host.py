"""Whether the ranks of a node fit its memory."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.memory._common import TIGHT
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.memory import MemoryAnswer
from fsdp_doctor.subjects.unit_plan import UnitPlan
from fsdp_doctor.tables.units import memory_size as size


@check("MEM013", Row.OOM, needs=(MemoryAnswer,), uses=(UnitPlan,), tags=("memory", "host"), cost=Cost.SECONDS)
def node_is_too_small(facts: Facts, options: Options) -> Iterator[Finding]:
    """The ranks of a node do not fit its memory.

    What: Adds up, over the ranks that share a node, the tensors that they keep on the host (CPU offload,
        pinned copies as the host allocator rounds them up) and a model that is built on the host before it
        is sharded; compares them with the node's memory (--host-memory). The processes, data loaders and
        page cache come on top.
    Why: The kernel ends a rank without a word of Python when a node's memory is full, and all others hang.
    Fix: Build on the meta device or on rank 0 alone; fewer ranks per node or more nodes for offload; pin less
        (CPUOffloadPolicy(pin_memory=False)).
    Sources: ATen/core/CachingHostAllocator.h; torch/distributed/fsdp/_fully_shard/_fsdp_param.py;
        huggingface/transformers#25107.
    """
    f = facts[MemoryAnswer].forecast
    if f is None:
        yield skip("there is no forecast")
        return
    host, plan = f.host, facts.find(UnitPlan)
    whole = sum(p.elements * p.item_bytes for p in plan.parameters) if plan is not None else 0
    on_host = plan is not None and bool(plan.parameters) and all(p.device != "meta" for p in plan.parameters)
    if host.capacity is None and host.peak < 1 << 20:
        yield ok("the steps keep nothing on the host")
        return
    if host.capacity is None:
        yield skip(
            f"the memory of a node is not known; its {host.ranks} ranks keep {size(host.node)} on it",
            enable="--host-memory GIB",
        )
        return
    built, room = whole * host.ranks, size(host.capacity)
    pinned = f", {size(host.pinned * host.ranks)} of it pinned" if host.pinned else ""
    kept = f"{host.ranks} ranks of a node keep {size(host.node)} on the host{pinned}"
    rounding = (host.pinned - host.pinned_requested) * host.ranks
    if host.node > TIGHT * host.capacity:
        waste = f"; {size(rounding)} is rounding to powers of two" if rounding > host.node // 10 else ""
        say = fail if host.node > host.capacity else warn
        yield say(
            f"{kept}{waste}",
            f"well below the node's {room}, which processes and data loaders share",
            fix=Fix(
                "Offload over more nodes, or with fewer ranks on each; CPUOffloadPolicy(pin_memory=False) "
                "saves the rounding and copies more slowly"
                if host.pinned
                else "Keep less on the host, or put fewer ranks on a node"
            ),
        )
    elif on_host and built > TIGHT * host.capacity:
        yield fail(
            f"each of {host.ranks} ranks of a node builds the whole model on the host: {size(built)} before "
            "anything is sharded",
            f"well below the node's {room}",
            fix=Fix('Build under torch.device("meta"), shard, then load or initialise the shards'),
        )
    elif built > TIGHT * host.capacity:
        yield info(
            f"if each of {host.ranks} ranks of a node builds or loads the whole model on the host, that "
            f"takes {size(built)}; the node has {room}",
            expected="a model on meta, filled from sharded files or from rank 0",
            fix=Fix("Build on the meta device; accelerate, Trainer: cpu_ram_efficient_loading"),
        )
    else:
        yield ok(f"{kept}; it has {room}")
