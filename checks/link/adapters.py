"""Adapters: how fast their slot is and how far they are from the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import ONE_GPU, fabric_hcas
from fsdp_doctor.engine.devices import (
    MACHINE_USES,
    at_address,
    counted,
    gpu_subject,
    gpu_words,
    virtual_machine,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.pci import Pci, PciDevice
from fsdp_doctor.subjects.rdma import Hca, Rdma
from fsdp_doctor.tables.link_facts import HCA_SHARE, PCIE_GENERATIONS, pcie_gbps

UNLINKED = "sysfs does not show where the adapters are"


def _link(device: PciDevice) -> str:
    generation = PCIE_GENERATIONS.get(device.speed or 0.0)
    speed = f"generation {generation}" if generation else f"{device.speed} GT/s"
    return f"{speed} x{device.width}"


def _rate(hca: Hca) -> float:
    return sum(p.rate_gbps or 0.0 for p in hca.ports)


@check("LNK013", Row.SLOW, needs=(Rdma, Pci), uses=MACHINE_USES, tags=("pcie", "rdma", "hardware"))
def adapter_link(facts: Facts, options: Options) -> Iterator[Finding]:
    """An RDMA adapter's PCIe link is slower than the adapter.

    What: compares the PCIe width of each adapter with the most that it and its slot allow, and what the
        link carries with the rate of its ports.
    Why: NCCL stripes over all adapters and waits for the slowest: one adapter at half its lanes slows
        every transfer between nodes.
    Fix: reseat the adapter or its cable, set the slot to full speed, or move it to another slot.
    Sources: Linux sysfs PCI attributes; imbue cluster-health; NCCL user guide (topology).
    """
    pci, guest = facts[Pci], virtual_machine(facts)
    placed = [(h, d) for h in facts[Rdma].hcas if h.pci is not None and (d := pci.get(h.pci)) is not None]
    known = [(h, d) for h, d in placed if d.width and d.speed]
    if not known:
        yield skip(
            "the adapters show no PCIe link" if placed or guest else UNLINKED,
            enable="the check on the host, if this is a virtual machine",
        )
        return
    faulty = False
    for hca, device in known:
        upper = pci.get(device.parents[0]) if device.parents else None
        tops = [d.width_max for d in (device, upper) if d is not None and d.width_max]
        carried, rate = pcie_gbps(device.speed, device.width), _rate(hca)
        narrow = bool(tops) and (device.width or 0) < min(tops)
        slow = carried is not None and rate > 0 and carried < HCA_SHARE * rate
        if not narrow and not slow:
            continue
        faulty = True
        text = f"{hca.name} ({device.bdf}): PCIe {_link(device)}"
        if narrow:
            text += f" of x{min(tops)} lanes"
        if slow and carried is not None:
            text += f", {carried:.0f} Gb/s for ports of {rate:.0f} Gb/s"
        yield warn(
            text,
            f"x{min(tops)}" if narrow else f"a link of at least {rate:.0f} Gb/s",
            subject=Subject(device=hca.name),
            fix=Fix(
                "Reseat the adapter and look at the speed and width that the firmware gives its slot",
                f"sudo lspci -vv -s {device.bdf} | grep -E 'LnkCap|LnkSta'",
                Risk.NEEDS_ROOT,
                Owner.HARDWARE,
            ),
        )
    if not faulty:
        yield ok(f"{len(known)} adapters at {', '.join(sorted({_link(d) for _, d in known}))}")


def _distance(pci: Pci, gpu: PciDevice, adapter: PciDevice) -> str:
    """nvidia-smi's letters: PIX or PXB under a common bridge, NODE on a socket, SYS across sockets."""
    if set(gpu.parents) & set(adapter.parents):
        return "PXB"
    if gpu.numa_node is None or adapter.numa_node is None or min(gpu.numa_node, adapter.numa_node) < 0:
        return "unknown"
    return "NODE" if gpu.numa_node == adapter.numa_node else "SYS"


@check("LNK014", Row.SLOW, needs=(Gpus, Rdma, Pci), uses=MACHINE_USES, tags=("rdma", "topology"))
def gpu_adapter_distance(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU's nearest RDMA adapter is on the other CPU socket.

    What: on machines with several adapters, finds for each GPU the nearest one by the PCI tree and the NUMA
        nodes.
    Why: GPUDirect RDMA across the CPU interconnect is slow or not used at all: NCCL sends this GPU's
        traffic through a neighbour GPU or host memory.
    Fix: put an adapter on each socket, or leave the far ones out of NCCL_IB_HCA; pass the real topology to
        virtual machines.
    Sources: NCCL user guide (NCCL_NET_GDR_LEVEL); `nvidia-smi topo -m` legend; gpud and Azure HPC checks.
    """
    gpus, pci = facts[Gpus].present, facts[Pci]
    adapters = [
        (h, d) for h in fabric_hcas(facts[Rdma]) if h.pci is not None and (d := pci.get(h.pci)) is not None
    ]
    if len(gpus) < 2:
        yield skip(ONE_GPU)
        return
    if virtual_machine(facts):
        yield skip("a virtual machine's PCI tree does not show real distances", enable="NCCL_TOPO_FILE")
        return
    if not adapters:
        yield skip(UNLINKED)
        return
    if len(adapters) < 2:
        yield ok(f"one adapter for {counted(gpus)}")
        return
    far: list[Gpu] = []
    unknown: list[Gpu] = []
    for device in pci.gpus:
        gpu = at_address(gpus, device.bdf)
        if gpu is None:
            continue
        levels = {_distance(pci, device, d) for _, d in adapters}
        if not levels & {"PXB", "NODE"}:
            (unknown if "unknown" in levels else far).append(gpu)
    if far:
        yield warn(
            f"{gpu_words(far)}: every one of {len(adapters)} adapters is SYS away (on the other socket)",
            "an adapter on the GPU's own socket",
            subject=gpu_subject(far),
            fix=Fix(
                "Put adapters on both sockets, or choose GPUs next to the adapters",
                "nvidia-smi topo -m",
                Risk.SAFE,
                Owner.ADMIN,
            ),
        )
    if unknown:
        yield info(f"{gpu_words(unknown)}: distance to the adapters unknown", subject=gpu_subject(unknown))
    if not far and not unknown:
        yield ok(f"each of {counted(gpus)} has one of {len(adapters)} adapters on its socket")
