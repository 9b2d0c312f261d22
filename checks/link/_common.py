"""What the link checks share: who has NVLink, and where PCIe P2P is needed."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.findings import Finding, Fix, Owner, Risk, skip
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.pci import Pci, PciDevice
from fsdp_doctor.subjects.rdma import Hca, Rdma
from fsdp_doctor.tables.gpu_products import Product, product
from fsdp_doctor.tables.nvml_codes import (
    FABRIC_IN_PROGRESS,
    FABRIC_NOT_STARTED,
    P2P_PCI,
    P2P_READ,
    P2P_WRITE,
)

ONE_GPU = "one GPU: nothing to link"
RESEAT = Fix(
    "Shut down, reseat the GPU and its riser or cable, and look at the slot's setting in the firmware",
    "sudo lspci -vv | grep -E 'LnkCap|LnkSta'",
    Risk.SAFE,
    Owner.HARDWARE,
)


def unanswered(gpus: Sequence[Gpu], function: str, what: str, enable: str = "") -> Finding:
    """The skip for a field that no GPU answered, with NVML's error."""
    errors = sorted({e for g in gpus if (e := g.errors.get(function)) is not None})
    reason = f"NVML: {', '.join(errors)}" if errors else "NVML was not asked"
    return skip(f"{what} is not known ({reason})", enable=enable)


def active_links(gpu: Gpu) -> int:
    """Links that are up."""
    return sum(1 for link in gpu.nvlinks or () if link.active)


def linked(gpus: Gpus) -> bool:
    """Whether every GPU with a handle has an active NVLink."""
    return bool(gpus.present) and all(active_links(g) for g in gpus.present)


def meshed(gpus: Sequence[Gpu]) -> bool:
    """Whether all are products whose boards connect every GPU to every other by NVLink."""
    made = [product(g.name) for g in gpus]
    return bool(made) and all(p is not None and p.mesh for p in made)


def serving(gpu: Gpu) -> bool:
    """A data-centre GPU, or one that the table does not know."""
    made: Product | None = product(gpu.name)
    return made is None or made.datacenter


def fabric_waits(gpus: Gpus) -> bool:
    """Whether the NVLink fabric has not come up, which explains everything that depends on it."""
    states = {g.fabric.state for g in gpus.present if g.fabric is not None}
    return bool(states & {FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS})


def peer_capable(gpus: Gpus) -> bool:
    """Whether the driver offers P2P over PCIe between some of the GPUs; unknown counts as yes."""
    if len(gpus.present) < 2 or not all(serving(g) for g in gpus.present):
        return False
    statuses = [s for g in gpus.present for (_, i), s in g.p2p.items() if i in (P2P_READ, P2P_WRITE, P2P_PCI)]
    return not statuses or 0 in statuses


def fabric_hcas(rdma: Rdma | None) -> tuple[Hca, ...]:
    """Adapters with a port that is up or could be, of a kind that NCCL uses for RDMA."""
    if rdma is None:
        return ()
    return tuple(h for h in rdma.hcas if any(p.state is None or "ACTIVE" in p.state.upper() for p in h.ports))


def peer_use(gpus: Gpus, rdma: Rdma | None) -> str | None:
    """What needs PCIe P2P here: the GPUs themselves, or adapters that write into their memory."""
    if peer_capable(gpus) and not linked(gpus):
        return "P2P between GPUs without NVLink"
    if fabric_hcas(rdma) and any(serving(g) for g in gpus.present):
        return "GPUDirect RDMA between adapters and GPUs"
    return None


def chain(pci: Pci, device: PciDevice) -> tuple[PciDevice, ...]:
    """The device and the bridges above it that sysfs shows, nearest first."""
    above = (pci.get(bdf) for bdf in device.parents)
    return (device, *(d for d in above if d is not None))


def device_links(pci: Pci, device: PciDevice) -> tuple[tuple[PciDevice, PciDevice | None], ...]:
    """The physical links from a device up to the root, as (lower end, upper end).

    In a chain device, downstream port, upstream port, root port every second pair is a link; the pairs
    between are inside of a switch. Without the whole chain only the device's own end is given.
    """
    ends = chain(pci, device)
    if len(ends) != len(device.parents) + 1:
        return ((device, None),)
    if len(ends) % 2:
        return ((device, ends[1] if len(ends) > 1 else None),)
    return tuple((ends[i], ends[i + 1]) for i in range(0, len(ends), 2))


def narrow_link(device: PciDevice, upper: PciDevice | None) -> tuple[int, int] | None:
    """(Lanes, lanes that both ends could run) of a link that is narrower than its ends."""
    tops = [d.width_max for d in (device, upper) if d is not None and d.width_max]
    if not device.width or not tops or device.width >= min(tops):
        return None
    return device.width, min(tops)
