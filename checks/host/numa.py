"""NUMA: GPUs on nodes the process may not use, unknown nodes, blocked calls, page migration."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import has_capability, has_gpus, nccl_version, version
from fsdp_doctor.engine.job import USES
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.host_thresholds import (
    CAP_SYS_NICE,
    NUMA_CALLS_DRIVER,
    NUMA_CALLS_FIRST,
    NUMA_CALLS_FIXED,
    NUMA_CALLS_RUNTIME,
    SECCOMP_FILTER,
)


@check("HST014", Row.SLOW, needs=(Host, Gpus), uses=(Pci, Scheduler), tags=("numa", "gpu"))
def remote_node(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPUs hang on NUMA nodes that this process may not use

    What: Compares the NUMA node of each visible GPU (of a rank: of its own GPU) with the processors and
        memory nodes that the process may use.
    Why: Every copy between host and GPU, every launch and every NCCL proxy step then crosses the socket
        link: DataLoader copies and offload slow down, and that rank is late in every collective.
    Fix: Bind each rank to the node of its GPU (numactl, torchrun --numa-binding, srun --cpu-bind) or
        let the container use all nodes (--cpuset-cpus, --cpuset-mems).
    Sources: Linux kernel documentation, sysfs numa_node; ml-engineering; torchrun documentation, NUMA
        binding; nvidia-smi topo -m.
    """
    host, gpus = facts[Host], _own_gpus(facts)
    if len([n for n, cpus in host.numa_nodes.items() if cpus]) < 2:
        yield ok("one NUMA node with processors")
        return
    nodes = {g.index: _node(g, facts.find(Pci), host) for g in gpus}
    if not any(n is not None for n in nodes.values()):
        yield skip("no GPU's NUMA node could be read", enable="/sys/bus/pci/devices/*/numa_node")
        return
    allowed = set(host.allowed_cpus or ())
    far = tuple(
        i
        for i, node in nodes.items()
        if node is not None
        and node >= 0
        and (
            (bool(allowed) and not allowed & set(host.numa_nodes.get(node, ())))
            or (host.mems_allowed is not None and bool(host.mems_allowed) and node not in host.mems_allowed)
        )
    )
    unknown = tuple(i for i, node in nodes.items() if node is not None and node < 0)
    if far:
        where = ", ".join(sorted({str(nodes[i]) for i in far}))
        yield warn(
            f"{_named(far)} on NUMA node {where}; this process may use "
            f"{len(allowed) or '?'} processors of nodes {_nodes_of(host, allowed)}, "
            f"memory of nodes {_list(host.mems_allowed)}",
            "processors and memory of the GPU's own node",
            subject=Subject(gpu=far[0] if len(far) == 1 else far),
            fix=Fix(
                "Bind each rank to the node of its GPU: numactl --cpunodebind, torchrun --numa-binding=node, "
                "srun --cpu-bind; in a container widen --cpuset-cpus and --cpuset-mems",
                risk=Risk.DISRUPTIVE,
            ),
        )
    if unknown and host.hypervisor:
        yield info(f"the virtual machine hides the NUMA node of {_named(unknown)} (numa_node -1)")
    elif unknown:
        yield warn(
            f"numa_node is -1 for {_named(unknown)} on a machine with {len(host.numa_nodes)} NUMA nodes",
            "the node that the slot belongs to",
            subject=Subject(gpu=unknown[0] if len(unknown) == 1 else unknown),
            fix=Fix(
                "Update the BIOS, whose ACPI tables lack the proximity of the slots",
                risk=Risk.DISRUPTIVE,
                owner=Owner.ADMIN,
            ),
        )
    if not far and not unknown:
        yield ok(f"{len(nodes)} GPU{'s' if len(nodes) != 1 else ''} on NUMA nodes that the process may use")


def _own_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """The rank's GPU where it is known, else all visible ones."""
    gpus, scheduler = facts[Gpus], facts.find(Scheduler)
    by_index = {g.index: g for g in gpus.present}
    order = gpus.visible if gpus.visible is not None else tuple(by_index)
    visible = tuple(by_index[i] for i in order if i in by_index)
    local = scheduler.local_rank if scheduler is not None else None
    return visible[local : local + 1] if local is not None and 0 <= local < len(visible) else visible


def _node(gpu: Gpu, pci: Pci | None, host: Host) -> int | None:
    """The node of the slot. NVML's number can be that of a GPU's own memory, which has no processors."""
    device = pci.get(gpu.bdf) if pci is not None and gpu.bdf else None
    if device is not None and device.numa_node is not None:
        return device.numa_node
    return gpu.numa_node if gpu.numa_node is not None and host.numa_nodes.get(gpu.numa_node) else None


def _named(gpus: tuple[int, ...]) -> str:
    return f"GPU{'s' if len(gpus) != 1 else ''} {', '.join(map(str, gpus))}"


def _list(values: tuple[int, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else "?"


def _nodes_of(host: Host, cpus: set[int]) -> str:
    return _list(tuple(sorted(n for n, members in host.numa_nodes.items() if cpus & set(members))))


@check(
    "HST015",
    Row.NCCL,
    needs=(Host,),
    uses=(Torch, Stack, Driver, Environment, *USES),
    tags=("numa", "container"),
)
def calls_blocked(facts: Facts, options: Options) -> Iterator[Finding]:
    """The container blocks the NUMA calls that this NCCL depends on

    What: In a container with a system-call filter and without CAP_SYS_NICE, looks for an NCCL from 2.24 to
        2.26.4 that allocates host memory through cuMem (driver of CUDA 12.6 and runtime of 12.2 or newer).
    Why: Docker's filter forbids get_mempolicy and set_mempolicy without that capability. These versions do
        not test whether cuMem host memory works, and communicator setup fails with a CUDA error.
    Fix: Start the container with --cap-add SYS_NICE, set NCCL_CUMEM_HOST_ENABLE=0, or use NCCL 2.26.5.
    Sources: NCCL user guide, troubleshooting, cuMem host allocations; docker documentation, seccomp.
    """
    host, text = facts[Host], nccl_version(facts)
    nccl, environment = version(text), facts.find(Environment)
    if host.container is None or host.seccomp != SECCOMP_FILTER or has_capability(host, CAP_SYS_NICE):
        yield ok("the NUMA system calls are not filtered")
        return
    if nccl is None:
        yield skip("the version of NCCL is not known", enable="a torch with NCCL")
        return
    torch, driver = facts.find(Torch), facts.find(Driver)
    runtime = version(torch.cuda) if torch is not None else None
    old_driver = driver is not None and driver.cuda_version is not None
    if (
        not NUMA_CALLS_FIRST <= nccl < NUMA_CALLS_FIXED
        or not has_gpus(facts)
        or (environment is not None and environment.nccl("NCCL_CUMEM_HOST_ENABLE") == "0")
        or (old_driver and driver is not None and (driver.cuda_version or 0) < NUMA_CALLS_DRIVER)
        or (runtime is not None and runtime < NUMA_CALLS_RUNTIME)
    ):
        yield ok(f"NCCL {text} does not depend on NUMA calls here")
        return
    yield warn(
        f"NCCL {text} in a container ({host.container}) whose filter blocks NUMA calls (no CAP_SYS_NICE)",
        "CAP_SYS_NICE, NCCL_CUMEM_HOST_ENABLE=0, or NCCL 2.26.5 or newer",
        subject=Subject(variable="NCCL_CUMEM_HOST_ENABLE"),
        fix=Fix(
            "Turn cuMem host memory off, or start the container with --cap-add SYS_NICE",
            "export NCCL_CUMEM_HOST_ENABLE=0",
        ),
        confidence=Confidence.MEDIUM,
    )


@check("HST016", Row.SLOW, needs=(Host,), uses=USES, tags=("numa", "memory"))
def balancing(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel moves pages between NUMA nodes while ranks run

    What: Reads kernel.numa_balancing on a machine with GPUs and several NUMA nodes.
    Why: Automatic balancing unmaps pages to see who touches them. Ranks that are bound already gain
        nothing from it and pay with page faults and jitter, which every rank waits for.
    Fix: Turn it off on machines that only train.
    Sources: Linux kernel documentation, sysctl/kernel, numa_balancing.
    """
    host = facts[Host]
    if host.numa_balancing is None:
        yield skip("kernel.numa_balancing could not be read", enable="/proc/sys/kernel/numa_balancing")
    elif host.numa_balancing and len(host.numa_nodes) > 1 and has_gpus(facts):
        command = "sudo sysctl -w kernel.numa_balancing=0"
        yield info(
            f"automatic NUMA balancing is on (kernel.numa_balancing) with {len(host.numa_nodes)} nodes",
            expected="off where ranks are bound to their GPU's node",
            subject=Subject(variable="kernel.numa_balancing"),
            fix=Fix("Turn automatic NUMA balancing off", command, Risk.NEEDS_ROOT, Owner.ADMIN),
        )
    else:
        yield ok(f"NUMA balancing {'on' if host.numa_balancing else 'off'}")
