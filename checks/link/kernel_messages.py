"""What the kernel log says about links."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.link._common import RESEAT, narrow_link
from fsdp_doctor.engine.devices import at_address
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, warn
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
AER = re.compile(
    r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): PCIe Bus Error: severity=Uncorrect(?:ed|able) "
    r"\((Fatal|Non-Fatal)\), type=([\w ]{1,40})"
)
SHOWN = 4


@check("LNK020", Row.SLOW, needs=(KernelLog,), uses=(Pci, Gpus), tags=("pcie", "nvlink", "kernel-log"))
def kernel_messages(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel log reports a limited PCIe link or an NVLink fault.

    What: searches the kernel log for links that are slower than their device ("available PCIe bandwidth,
        limited by") of GPUs and network adapters, for uncorrected PCIe errors of these and of the bridges
        above them, and for NVLink faults that are no Xid. A link whose present state is judged by itself
        is only mentioned.
    Why: an adapter or GPU in a slow slot limits the whole job, and a link that did not train stays down.
    Fix: move the device to a wider or faster slot, reseat it, or reset the GPUs.
    Sources: Linux kernel pcie_print_link_status and PCIe AER documentation; imbue
        cluster-health (kernel log); gpud NVLink messages.
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
    broken = list(_uncorrected(log.lines, pci, gpus))
    yield from broken
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
    if not limited and not faults and not broken:
        yield ok("no limited PCIe link, no PCIe error and no NVLink fault in the kernel log")


def _uncorrected(lines: tuple[str, ...], pci: Pci | None, gpus: Gpus | None) -> Iterator[Finding]:
    """One finding for each device that reported uncorrected errors: a fatal one resets its link."""
    found: dict[str, list[re.Match[str]]] = {}
    for match in filter(None, map(AER.search, lines)):
        if pci is None or _concerns(pci, match.group(1)):
            found.setdefault(match.group(1), []).append(match)
    for bdf, matches in found.items():
        gpu = at_address(gpus.present, bdf) if gpus is not None else None
        fatal = any(m.group(2) == "Fatal" for m in matches)
        say = fail if fatal else warn
        yield say(
            f"{len(matches)} uncorrected PCIe errors of {bdf} in the kernel log, the last "
            f"{'fatal' if matches[-1].group(2) == 'Fatal' else 'non-fatal'} ({matches[-1].group(3)})",
            "no uncorrected PCIe error since boot",
            subject=Subject(gpu=gpu.index if gpu is not None else None, device=bdf),
            row=Row.NCCL,
            fix=RESEAT,
            evidence=tuple(Evidence("kernel log", m.string[:300]) for m in matches[-SHOWN:]),
            why="A fatal error resets the link and takes the device with it: the rank on it dies, and the "
            "others report an NCCL timeout.",
        )


def _concerns(pci: Pci, bdf: str) -> bool:
    """A GPU, an adapter, or a bridge above one."""
    if _matters(pci.get(bdf)):
        return True
    return any(bdf in d.parents for d in pci.devices if _matters(d))


def _matters(device: PciDevice | None) -> bool:
    """GPUs and network or InfiniBand adapters; a storage device's slot does not concern NCCL."""
    if device is None:
        return False
    return device.pci_class >> 16 in (0x02, 0x03, 0x12) or device.pci_class >> 8 == 0x0C06
