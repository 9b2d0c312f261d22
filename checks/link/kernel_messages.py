"""What the kernel log says about links."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.link._common import RESEAT, narrow_link
from fsdp_doctor.engine.devices import at_address
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.pci import Pci, PciDevice

LIMITED = re.compile(
    r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ([\d.]+ Gb/s) available PCIe bandwidth, limited by "
    r"(.{1,60}?) link at ([0-9a-f:.]{7,12}) \(capable of ([\d.]+ Gb/s)"
)
NVLINK_FAULT = re.compile(
    r"(?i)nv-?link.{0,160}(fatal|failed to|training fail|link down|timed? ?out)|RxDetLinkMask failed"
)
SHOWN = 4


@check("LNK020", Row.SLOW, needs=(KernelLog,), uses=(Pci, Gpus), tags=("pcie", "nvlink", "kernel-log"))
def kernel_messages(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel log reports a limited PCIe link or an NVLink fault.

    What: searches the kernel log for links that are slower than their device ("available PCIe bandwidth,
        limited by") of GPUs and network adapters, and for NVLink faults that are no Xid. A link whose
        present state is judged by itself is only mentioned.
    Why: an adapter or GPU in a slow slot limits the whole job, and a link that did not train stays down.
    Fix: move the device to a wider or faster slot, reseat it, or reset the GPUs.
    Sources: Linux kernel pcie_print_link_status; imbue cluster-health (kernel log); gpud NVLink messages.
    """
    log, pci, gpus = facts[KernelLog], facts.find(Pci), facts.find(Gpus)
    limited: dict[str, re.Match[str]] = {}
    for line in log.lines:
        match = LIMITED.search(line)
        if match is not None and (pci is None or _matters(pci.get(match.group(1)))):
            limited[match.group(1)] = match
    for bdf, match in limited.items():
        gpu = at_address(gpus.present, bdf) if gpus is not None else None
        device = pci.get(bdf) if pci is not None else None
        found = (
            f"{bdf}: {match.group(2)} of PCIe bandwidth, limited by {match.group(3)} at {match.group(4)}; "
            f"the device is capable of {match.group(5)}"
        )
        subject = Subject(gpu=gpu.index if gpu is not None else None, device=bdf)
        if device is not None and narrow_link(device, None) is not None:
            yield info(f"{found} (its present width says so too)", subject=subject)
            continue
        yield warn(
            found,
            f"{match.group(5)}",
            subject=subject,
            fix=RESEAT,
            evidence=(Evidence("kernel log", match.group(0)),),
        )
    faults = [x for x in log.lines if "Xid" not in x and NVLINK_FAULT.search(x)]
    if faults:
        yield warn(
            f"{len(faults)} NVLink faults in the kernel log, the last: {faults[-1][:200]}",
            "no NVLink fault",
            row=Row.NCCL,
            fix=Fix(
                "Look at the state of the links, reset the GPUs, and restart the fabric manager",
                "nvidia-smi nvlink -s",
                Risk.SAFE,
                Owner.ADMIN,
            ),
            evidence=tuple(Evidence("kernel log", x[:300]) for x in faults[-SHOWN:]),
        )
    if not limited and not faults:
        yield ok("no limited PCIe link and no NVLink fault in the kernel log")


def _matters(device: PciDevice | None) -> bool:
    """GPUs and network or InfiniBand adapters; a storage device's slot does not concern NCCL."""
    if device is None:
        return False
    return device.pci_class >> 16 in (0x02, 0x03, 0x12) or device.pci_class >> 8 == 0x0C06
