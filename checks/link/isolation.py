"""PCIe isolation that sends peer traffic through the root complex: ACS and the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import chain, linked, peer_use
from fsdp_doctor.engine.devices import MACHINE_USES, at_address, virtual_machine
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import (
    Confidence,
    Evidence,
    Finding,
    Fix,
    Owner,
    Risk,
    Row,
    Subject,
    fail,
    info,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci, PciDevice
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.tables.link_facts import ACS_REDIRECT, ACS_SOURCE_VALIDATION, acs_words

PASSTHROUGH = frozenset(("iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off", "iommu=off"))
TURNED_ON = ("intel_iommu=on", "amd_iommu=on", "amd_iommu=force_enable", "iommu=on", "iommu=force")
NOT_NEEDED = "nothing here needs P2P over PCIe"


def _bridges(pci: Pci, gpus: Gpus) -> dict[str, tuple[PciDevice, list[int]]]:
    """Bridges above the GPUs -> (bridge, NVML indices below it)."""
    found: dict[str, tuple[PciDevice, list[int]]] = {}
    for device in pci.gpus:
        gpu = at_address(gpus.present, device.bdf)
        if gpu is None:
            continue
        for bridge in chain(pci, device)[1:]:
            found.setdefault(bridge.bdf, (bridge, []))[1].append(gpu.index)
    return found


@check("LNK009", Row.NCCL, needs=(Pci, Gpus), uses=(Rdma, *MACHINE_USES), tags=("pcie", "p2p"))
def acs(facts: Facts, options: Options) -> Iterator[Finding]:
    """ACS redirects peer traffic on the bridges above GPUs.

    What: reads the ACS control register of the PCIe bridges above the GPUs where P2P over PCIe is needed:
        between GPUs without NVLink, or between adapters and GPUs (GPUDirect RDMA). Reading it needs root.
    Why: with request or completion redirect on, peer traffic goes up to the CPU and back: NCCL hangs at
        start on some machines and is several times slower on all others.
    Fix: switch ACS off in the firmware, or clear the register of these bridges at every boot.
    Sources: NCCL user guide, troubleshooting (PCI Access Control Services); nccl#2079; gpud pci component.
    """
    pci, gpus = facts[Pci], facts[Gpus]
    use = peer_use(gpus, facts.find(Rdma))
    bridges = _bridges(pci, gpus)
    guest = virtual_machine(facts)
    readable = {b: v for b, v in bridges.items() if v[0].has_acs is not None}
    if guest:
        yield skip("in a virtual machine the bridges are not the real ones", enable="the check on the host")
        return
    if not bridges:
        yield skip("sysfs shows no bridge above the GPUs")
        return
    if not readable:
        if use is None:
            yield ok(NOT_NEEDED)
        else:
            yield skip(
                f"the ACS registers of {len(bridges)} bridges above the GPUs could not be read",
                enable="run as root: sysfs shows the extended configuration space to root only",
            )
        return
    on = {b: (d, below) for b, (d, below) in readable.items() if (d.acs_control or 0) & ACS_REDIRECT}
    valid = [
        b for b, (d, _) in readable.items() if (d.acs_control or 0) & ACS_SOURCE_VALIDATION and b not in on
    ]
    if not on and not valid:
        yield ok(f"ACS is off on {len(readable)} bridges above the GPUs")
        return
    names = sorted(on or valid)
    device = readable[names[0]][0]
    below = sorted({i for b in names for i in readable[b][1]})
    subject = Subject(gpu=below[0] if len(below) == 1 else tuple(below), device=names[0])
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    found = f"ACS on for {len(names)} bridges above GPUs ({shown}: {acs_words(device.acs_control or 0)})"
    if use is None:
        yield info(f"{found}; {NOT_NEEDED}", subject=subject)
        return
    say = fail if on else warn
    yield say(
        f"{found}, with {use}",
        "ACS off on the bridges above GPUs",
        subject=subject,
        confidence=Confidence.HIGH if on else Confidence.LOW,
        fix=Fix(
            "Switch ACS off in the firmware, or clear it on every bridge at each boot",
            "for b in " + " ".join(names[:16]) + "; do sudo setpci -s $b ECAP_ACS+0x6.w=0000; done",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
        evidence=tuple(
            Evidence(f"/sys/bus/pci/devices/{b}/config", f"ACSCtl {readable[b][0].acs_control:#06x}")
            for b in names[:4]
        ),
    )


@check("LNK010", Row.NCCL, needs=(Host, Gpus), uses=(Rdma,), tags=("pcie", "p2p", "host"))
def iommu(facts: Facts, options: Options) -> Iterator[Finding]:
    """The IOMMU translates peer traffic.

    What: on bare metal where P2P over PCIe is needed, looks at the kernel's boot arguments and for IOMMU
        groups without the pass-through mode. On Arm servers (Grace) the SMMU is part of the design.
    Why: a translating IOMMU sends peer traffic through the CPU: NCCL hangs in its first collective on
        some machines, and GPUDirect RDMA is slow on others.
    Fix: boot with iommu=pt, or switch the IOMMU off in the firmware.
    Sources: NCCL user guide, troubleshooting (PCI Access Control Services, IOMMU); nccl#631; nccl-tests#117.
    """
    host, gpus = facts[Host], facts[Gpus]
    arguments = set(host.boot_arguments)
    if virtual_machine(facts):
        yield skip("a virtual machine's IOMMU is the hypervisor's", enable="the check on the host")
        return
    if (host.architecture or "").startswith(("aarch64", "arm")):
        yield ok("the SMMU of an Arm server serves the GPUs by design")
        return
    if not arguments and host.iommu_groups is None:
        yield skip("neither the boot arguments nor the IOMMU groups could be read")
        return
    use = peer_use(gpus, facts.find(Rdma))
    passed = sorted(arguments & PASSTHROUGH)
    asked = sorted(a for a in arguments if a.startswith(TURNED_ON))
    groups = host.iommu_groups or 0
    if passed or (not asked and groups == 0):
        yield ok(f"IOMMU: {', '.join(passed) or 'off'}")
        return
    found = f"IOMMU on without pass-through ({', '.join(asked) or f'{groups} IOMMU groups'})"
    if use is None or len(gpus.present) < 2:
        yield info(f"{found}; {NOT_NEEDED}")
        return
    yield warn(
        f"{found}, with {use}",
        "iommu=pt among the boot arguments, or the IOMMU off",
        confidence=Confidence.HIGH if asked and not linked(gpus) else Confidence.MEDIUM,
        fix=Fix(
            "Add iommu=pt to the kernel's boot arguments and reboot",
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub && sudo update-grub",
            Risk.DISRUPTIVE,
            Owner.ADMIN,
        ),
        evidence=(Evidence("/proc/cmdline", " ".join(host.boot_arguments)[:300]),),
    )
