"""Host memory: the container's limit and what the machine has free, against what ranks take."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.job import USES, local_ranks, visible_gpus
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.tables.host_thresholds import (
    FULL_STATE_FACTOR,
    MEMORY_CPU_ONLY,
    MEMORY_PER_RANK,
    MEMORY_PER_RANK_MINIMUM,
    SWAP_USED_BYTES,
    SWAP_USED_PERCENT,
)
from fsdp_doctor.tables.units import percent, size

FULL_STATE = (
    "A full state dict with CPU offload gathers all parameters and optimizer state in rank 0's memory; "
    "the kernel kills it there, and the other ranks time out in the next collective."
)
SHARDED = Fix(
    "Save sharded with torch.distributed.checkpoint, so that no rank holds the whole state, or give the "
    "machine or container more memory",
    risk=Risk.DISRUPTIVE,
)


def _tight(host: Host) -> int | None:
    """The control group's limit where it is below the machine's memory."""
    limit = host.cgroup.memory_max
    if limit is None or (host.memory_total is not None and limit >= host.memory_total):
        return None
    return limit


def _judge(facts: Facts, options: Options, have: int, found: str, variable: str, fix: Fix) -> Finding:
    """One finding about `have` bytes of host memory for the local ranks."""
    ranks = max(local_ranks(facts, options), 1)
    subject = Subject(variable=variable)
    each = f"for each of {ranks} local rank{'s' if ranks != 1 else ''}"
    if visible_gpus(facts) == 0:
        if have < MEMORY_CPU_ONLY:
            return warn(found, f"{size(MEMORY_CPU_ONLY)} or more", subject=subject, fix=fix)
        return ok(found)
    if have < MEMORY_PER_RANK_MINIMUM * ranks:
        return fail(found, f"at least {size(MEMORY_PER_RANK_MINIMUM)} {each}", subject=subject, fix=fix)
    if have < MEMORY_PER_RANK * ranks:
        return warn(found, f"about {size(MEMORY_PER_RANK)} {each}", subject=subject, fix=fix)
    if options.model_bytes is not None:
        whole = options.model_bytes * FULL_STATE_FACTOR
        need = whole + MEMORY_PER_RANK_MINIMUM * ranks
        if have < need:
            expected = f"{size(need)} if rank 0 gathers the full state of {size(whole)}"
            return warn(found, expected, subject=subject, fix=SHARDED, why=FULL_STATE, row=Row.SAVE)
    return ok(found)


@check("HST010", Row.OOM, needs=(Host,), uses=USES, tags=("container", "memory"))
def memory_limit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The container's memory limit is too small for the ranks

    What: Compares memory.max of the control group with what the local ranks take: about 4 GiB of host
        memory for a CUDA rank, and the full state of the model on rank 0 where a model was named.
    Why: Libraries, CUDA contexts, pinned buffers and DataLoader workers count against the limit, and so
        does /dev/shm. Past it the kernel kills a process without a traceback: exit code -9 or 137,
        and NCCL timeouts on the ranks that are left.
    Fix: Raise the limit (docker run --memory, resources.limits.memory of the pod, --mem of sbatch), or
        save sharded and use fewer DataLoader workers.
    Sources: Linux kernel documentation, cgroup v2, memory; docker run, --memory; PyTorch documentation,
        StateDictOptions.
    """
    limit = _tight(facts[Host])
    if limit is None:
        yield ok("the control group sets no memory limit below the machine's memory")
        return
    current = facts[Host].cgroup.memory_current
    used = f", {size(current)} in use (page cache counts)" if current is not None else ""
    text = "Raise the memory limit: docker run --memory, resources.limits.memory of the pod, --mem of sbatch"
    fix = Fix(text, risk=Risk.DISRUPTIVE)
    yield _judge(facts, options, limit, f"memory limit {size(limit)}{used}", "memory.max", fix)


@check("HST011", Row.OOM, needs=(Host,), uses=USES, tags=("memory",))
def memory_available(facts: Facts, options: Options) -> Iterator[Finding]:
    """Too little host memory is free

    What: Compares MemAvailable with what the local ranks take: about 4 GiB for a CUDA rank, and the full
        state of the model on rank 0 where a model was named.
    Why: Loading a model, pinning memory and gathering a state dict need host memory. Without it the kernel
        swaps or kills a rank (exit code -9), and the other ranks time out.
    Fix: End what holds the memory, or start fewer ranks or DataLoader workers.
    Sources: proc(5), /proc/meminfo, MemAvailable; gpud; PyTorch documentation, StateDictOptions.
    """
    host = facts[Host]
    if host.memory_available is None:
        yield skip("MemAvailable could not be read", enable="/proc/meminfo")
        return
    total = f" of {size(host.memory_total)}" if host.memory_total else ""
    found = f"{size(host.memory_available)}{total} host memory available"
    fix = Fix("List what holds the memory and end what is not needed", "ps aux --sort=-rss | head -15")
    if _tight(host) is not None and options.model_bytes is not None:
        options = Options(nproc=options.nproc, nodes=options.nodes)
    yield _judge(facts, options, host.memory_available, found, "MemAvailable", fix)


@check("HST012", Row.SLOW, needs=(Host,), uses=USES, tags=("memory",))
def swap(facts: Facts, options: Options) -> Iterator[Finding]:
    """Swap is in use on a training machine

    What: Reads how much swap space there is and how much of it is used.
    Why: A rank whose pages come back from disk is late in every step, and all ranks wait for it in the
        next collective; under memory pressure the machine crawls instead of failing with a clear error.
    Fix: Free memory, then turn swap off.
    Sources: proc(5), /proc/swaps; imbue cluster-health; Azure HPC health checks.
    """
    host = facts[Host]
    if host.swap_total is None:
        yield skip("the swap space could not be read", enable="/proc/meminfo")
        return
    used = host.swap_used or 0
    found = f"{size(used)} of {size(host.swap_total)} swap in use"
    if host.swap_total <= 0:
        yield ok("no swap space")
    elif used >= SWAP_USED_BYTES and percent(used, host.swap_total) >= SWAP_USED_PERCENT:
        fix = Fix("Free memory, then turn swap off", "sudo swapoff -a", Risk.NEEDS_ROOT)
        yield warn(found, "no swap in use", subject=Subject(variable="swap"), fix=fix)
    elif visible_gpus(facts) > 0:
        yield info(f"swap is on: {found}", expected="no swap on a GPU server")
    else:
        yield ok(found)
