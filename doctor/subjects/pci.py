"""PCI devices that matter to training: GPUs, switches, bridges above them, network adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One function of sysfs. `parents` are the addresses of the bridges above it, nearest first."""

    bdf: str
    vendor: int
    device: int
    pci_class: int
    """24 bits, 0x030200 is a 3D controller."""
    driver: str | None = None
    numa_node: int | None = None
    width: int | None = None
    width_max: int | None = None
    speed: float | None = None
    """GT/s."""
    speed_max: float | None = None
    parents: tuple[str, ...] = ()
    acs_control: int | None = None
    """ACS control register where the extended configuration space could be read; 0 is off."""
    has_acs: bool | None = None
    """None: only the first 64 bytes of the configuration space could be read (no root)."""
    aer_fatal: int | None = None
    aer_nonfatal: int | None = None
    aer_correctable: int | None = None


@dataclass(frozen=True, slots=True)
class Pci:
    """By address."""

    devices: tuple[PciDevice, ...]

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA display and 3D controllers."""
        return tuple(d for d in self.devices if d.vendor == 0x10DE and d.pci_class >> 16 == 0x03)

    @property
    def nvswitches(self) -> tuple[PciDevice, ...]:
        """NVIDIA bridges of class 0x0680."""
        return tuple(d for d in self.devices if d.vendor == 0x10DE and d.pci_class >> 8 == 0x0680)

    def get(self, bdf: str) -> PciDevice | None:
        """The device at an address."""
        return next((d for d in self.devices if d.bdf == bdf), None)
