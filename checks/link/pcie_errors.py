"""Errors on PCIe links: replays and what the kernel counts."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import RESEAT, unanswered
from fsdp_doctor.engine.devices import at_address, counted, gpu_subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.pci import Pci, PciDevice
from fsdp_doctor.tables.link_facts import AER_CORRECTABLE_WARN, PCIE_REPLAY_WARN

REPLAY = "nvmlDeviceGetPcieReplayCounter"
SHOWN = 4


@check("LNK019", Row.SLOW, needs=(Gpus,), tags=("pcie", "hardware"))
def replays(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU's PCIe link repeats many packets.

    What: reads the PCIe replay counter of each GPU since the driver loaded. A sound link makes a handful.
    Why: replays are transmission errors that the link repairs: they cost bandwidth, and a link that makes
        many of them ends with a GPU that falls off the bus.
    Fix: reseat the GPU, its riser or cable.
    Sources: NVML API reference (PCIe replay counter); DCGM PCIe replay rate.
    """
    gpus = facts[Gpus].present
    known = [(g, g.pcie_replays) for g in gpus if g.pcie_replays is not None]
    if not known:
        yield unanswered(gpus, REPLAY, "the PCIe replay count")
        return
    many = [(g, n) for g, n in known if n >= PCIE_REPLAY_WARN]
    if many:
        counts = ", ".join(f"{n} on GPU {g.index}" for g, n in many)
        yield warn(
            f"PCIe replays: {counts}",
            f"fewer than {PCIE_REPLAY_WARN} since the driver loaded",
            subject=gpu_subject([g for g, _ in many]),
            fix=RESEAT,
        )
    else:
        yield ok(f"at most {max(n for _, n in known)} PCIe replays on {counted(known)}")


@check("LNK018", Row.NCCL, needs=(Pci,), uses=(Gpus,), tags=("pcie", "hardware"))
def aer(facts: Facts, options: Options) -> Iterator[Finding]:
    """PCIe errors were counted on a GPU, an adapter or a bridge above them.

    What: reads the kernel's counters of advanced error reporting since boot: fatal, non-fatal and corrected
        errors of GPUs, NVSwitches, adapters and bridges.
    Why: a fatal error resets the link and takes the device with it; the rank on it dies and the others
        report an NCCL timeout. Many corrected errors announce that.
    Fix: reseat the device, its riser or cable; have it replaced if the errors come back.
    Sources: Linux kernel PCIe AER documentation; DCGM PCIe checks.
    """
    pci, gpus = facts[Pci], facts.find(Gpus)
    counted = [
        d for d in pci.devices if any(n is not None for n in (d.aer_fatal, d.aer_nonfatal, d.aer_correctable))
    ]
    if not counted:
        yield skip("no device shows error counters", enable="PCIe AER in the kernel, on bare metal")
        return
    faulty = False
    for kind, limit, say in (
        ("fatal", 1, fail),
        ("nonfatal", 1, warn),
        ("correctable", AER_CORRECTABLE_WARN, warn),
    ):
        bad = [(d, n) for d in counted if (n := _count(d, kind)) >= limit]
        if bad:
            faulty = True
            indices = sorted(
                {g.index for d, _ in bad if gpus is not None and (g := at_address(gpus.present, d.bdf))}
            )
            gpu = indices[0] if len(indices) == 1 else tuple(indices) or None
            yield say(
                f"PCIe {kind} errors since boot: "
                + ", ".join(f"{n} on {d.bdf}" for d, n in bad[:SHOWN])
                + (f" and {len(bad) - SHOWN} more devices" if len(bad) > SHOWN else ""),
                "none" if limit == 1 else f"fewer than {limit}",
                subject=Subject(gpu=gpu, device=bad[0][0].bdf),
                fix=RESEAT,
                row=Row.NCCL if kind == "fatal" else Row.SLOW,
            )
    if not faulty:
        yield ok(f"no PCIe errors that matter on {len(counted)} devices")


def _count(device: PciDevice, kind: str) -> int:
    value = {
        "fatal": device.aer_fatal,
        "nonfatal": device.aer_nonfatal,
        "correctable": device.aer_correctable,
    }[kind]
    return value or 0
