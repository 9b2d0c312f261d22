"""PCI devices that matter to training, from sysfs."""

from __future__ import annotations

import re

from fsdp_doctor.facts.parse import BDF, integer, pci_parts
from fsdp_doctor.facts.pci_config import acs
from fsdp_doctor.facts.source import Source, number, text
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.pci import Pci, PciDevice

FOLDER = "/sys/bus/pci/devices"
DEVICE_LIMIT = 8192
NVIDIA = 0x10DE
MELLANOX = 0x15B3
WANTED = {0x02, 0x03, 0x12}
"""Base classes: network controllers, display controllers, processing accelerators."""
INFINIBAND = 0x0C06
CONFIG_SIZE = 4096


def pci(source: Source) -> Known[Pci] | Unknown:
    """GPUs, NVSwitches, network adapters and the bridges above them, by address."""
    names = [n for n in source.listdir(FOLDER) if BDF.match(n)][:DEVICE_LIMIT]
    if not names:
        if source.exists("/sys/bus"):
            return Unknown("the machine shows no PCI device", absent=True)
        return Unknown("sysfs could not be read", enable="mount /sys in the container")
    chosen = {n: real for n in names if wanted(source, (real := source.realpath(f"{FOLDER}/{n}")))}
    known = set(names)
    for real in tuple(chosen.values()):
        folder = real
        for _ in pci_parts(real)[1:]:
            folder = folder.rpartition("/")[0]
            parent = folder.rpartition("/")[2]
            if parent in known:
                chosen.setdefault(parent, folder)
    return Known(Pci(tuple(device(source, n, chosen[n]) for n in sorted(chosen))), FOLDER)


def wanted(source: Source, folder: str) -> bool:
    """Whether training may use the device itself; a device that hides its class counts by its maker."""
    kind = number(source, f"{folder}/class")
    vendor = number(source, f"{folder}/vendor")
    if kind is None:
        return vendor in (NVIDIA, MELLANOX)
    bridge = vendor == NVIDIA and kind >> 8 == 0x0680
    return bridge or kind >> 16 in WANTED or kind >> 8 == INFINIBAND


def device(source: Source, bdf: str, folder: str) -> PciDevice:
    """One function of a device in its real folder."""
    has_acs, control = acs(_config(source, folder))
    return PciDevice(
        bdf=bdf,
        vendor=number(source, f"{folder}/vendor") or 0,
        device=number(source, f"{folder}/device") or 0,
        pci_class=number(source, f"{folder}/class") or 0,
        driver=driver(source, folder),
        numa_node=number(source, f"{folder}/numa_node"),
        width=_width(source, f"{folder}/current_link_width"),
        width_max=_width(source, f"{folder}/max_link_width"),
        speed=_speed(source, f"{folder}/current_link_speed"),
        speed_max=_speed(source, f"{folder}/max_link_speed"),
        parents=tuple(p for p in reversed(pci_parts(folder)) if p != bdf),
        acs_control=control,
        has_acs=has_acs,
        aer_fatal=_aer(source, f"{folder}/aer_dev_fatal"),
        aer_nonfatal=_aer(source, f"{folder}/aer_dev_nonfatal"),
        aer_correctable=_aer(source, f"{folder}/aer_dev_correctable"),
    )


def driver(source: Source, folder: str) -> str | None:
    """Name of the kernel driver bound to a device of sysfs."""
    link = source.readlink(f"{folder}/driver")
    return link.rstrip("/").rpartition("/")[2] or None if link else None


def _config(source: Source, folder: str) -> bytes:
    raw = source.read(f"{folder}/config", CONFIG_SIZE)
    return b"" if isinstance(raw, Unknown) else raw


def _width(source: Source, path: str) -> int | None:
    """Lanes; the kernel writes 0 or 255 where the device has no link to speak of."""
    lanes = number(source, path)
    return lanes if lanes is not None and 0 < lanes < 255 else None


def _speed(source: Source, path: str) -> float | None:
    match = re.match(r"(\d{1,4}(?:\.\d{1,3})?) GT/s", text(source, path, 64) or "")
    return float(match.group(1)) if match else None


def _aer(source: Source, path: str) -> int | None:
    """The total of a counter file of Advanced Error Reporting; of old kernels the one number in it."""
    counts = text(source, path, 65536)
    if counts is None:
        return None
    rows = [line.rsplit(None, 1) for line in counts.splitlines()]
    pairs = {r[0]: n for r in rows if len(r) == 2 and (n := integer(r[1])) is not None}
    totals = [n for name, n in pairs.items() if name.startswith("TOTAL_ERR")]
    if totals:
        return totals[0]
    return sum(pairs.values()) if pairs else integer(counts)
