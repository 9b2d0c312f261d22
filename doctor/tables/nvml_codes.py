"""NVML's enumerations in words: recovery actions, clock event reasons, fabric health, P2P status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHECKED_ON = "2026-11"
SOURCE = "nvidia-ml-py 13.615.71 (nvml.h of driver 615)"

RECOVERY_ACTIONS: Mapping[int, tuple[str, str, str | None]] = {
    1: ("GPU reset", "Drain the GPU's processes and reset it", "sudo nvidia-smi --gpu-reset -i {gpu}"),
    2: ("node reboot", "Reboot the node", "sudo systemctl reboot"),
    3: ("drain P2P", "Stop every process that uses this GPU from another GPU", None),
    4: (
        "drain and reset",
        "Let the running work end, start no new one, then reset the GPU",
        "sudo nvidia-smi --gpu-reset -i {gpu}",
    ),
    5: ("recover the IMEX domain", "Restart the IMEX domain on all of its nodes", None),
    6: ("bus reset", "Reset the PCIe bus of the GPU", None),
    7: ("system reboot", "Reboot the whole system, host included", "sudo systemctl reboot"),
}
"""NVML_GPU_RECOVERY_ACTION_* -> (name, what to do, command with {gpu})."""
RESETS = frozenset((1, 4))
"""Recovery actions that a pending row remapping asks for too."""

CLOCK_IDLE = 0x1
CLOCK_SETTING = 0x2
CLOCK_POWER_CAP = 0x4
CLOCK_HW_SLOWDOWN = 0x8
CLOCK_SW_THERMAL = 0x20
CLOCK_HW_THERMAL = 0x40
CLOCK_POWER_BRAKE = 0x80
HARDWARE_SLOWDOWNS: Mapping[int, str] = {
    CLOCK_HW_SLOWDOWN: "HW slowdown",
    CLOCK_HW_THERMAL: "HW thermal slowdown",
    CLOCK_POWER_BRAKE: "HW power brake slowdown",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that halve the clock or worse."""

PROHIBITED, EXCLUSIVE_PROCESS, EXCLUSIVE_THREAD = 2, 3, 1
"""NVML_COMPUTEMODE_*."""

PASSTHROUGH, VGPU, HOST_VGPU, HOST_VSGA = 1, 2, 3, 4
"""NVML_GPU_VIRTUALIZATION_MODE_*."""

GEFORCE, TITAN = frozenset((5, 15)), frozenset((6, 16))
"""NVML_BRAND_*."""

FABRIC_NOT_SUPPORTED, FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS, FABRIC_COMPLETED = 0, 1, 2, 3
"""NVML_GPU_FABRIC_STATE_*."""


@dataclass(frozen=True, slots=True)
class HealthField:
    """One field of the fabric's health mask; `bad` maps its faulty values to words."""

    shift: int
    mask: int
    bad: Mapping[int, str]


HEALTH_FIELDS: tuple[HealthField, ...] = (
    HealthField(0, 0x3, {1: "degraded bandwidth"}),
    HealthField(2, 0x3, {1: "route recovery in progress"}),
    HealthField(4, 0x3, {1: "route unhealthy"}),
    HealthField(6, 0x3, {1: "access timeout recovery in progress"}),
    HealthField(
        8,
        0xF,
        {
            2: "incorrect configuration: system GUID",
            3: "incorrect configuration: chassis serial number",
            4: "incorrect configuration: no partition",
            5: "incorrect configuration: too few NVLinks",
            6: "incorrect configuration: incompatible GPU firmware",
            7: "incorrect configuration: invalid location",
            8: "incorrect configuration: GPU state invalid",
        },
    ),
    HealthField(12, 0x3, {2: "no partition assigned"}),
    HealthField(14, 0x3, {2: "global fabric manager disconnected"}),
)
TRANSIENT = frozenset(("route recovery in progress", "access timeout recovery in progress"))
"""Faults of the health mask that end by themselves."""
HEALTH_SUMMARIES: Mapping[int, str] = {2: "unhealthy", 3: "limited capacity"}
"""NVML_GPU_FABRIC_HEALTH_SUMMARY_* that are faults."""

P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PCI = range(5)
"""NVML_P2P_CAPS_INDEX_*."""
P2P_STATUS: Mapping[int, str] = {
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported (two I/O hubs)",
    4: "disabled by a driver registry key",
    5: "not supported",
    6: "unknown",
}
"""NVML_P2P_STATUS_* other than OK."""
P2P_DISABLED_BY_KEY = 4

TOPOLOGY: Mapping[int, str] = {
    0: "same board",
    10: "PIX (one PCIe switch)",
    20: "PXB (several PCIe switches)",
    30: "PHB (through the host bridge)",
    40: "NODE (through the CPU)",
    50: "SYS (between CPU sockets)",
}
"""NVML_TOPOLOGY_* with nvidia-smi's letters."""
TOPOLOGY_SYSTEM = 50


def health_faults(mask: int) -> tuple[str, ...]:
    """The faults of a fabric health mask in words; empty where it shows none."""
    values = ((f, (mask >> f.shift) & f.mask) for f in HEALTH_FIELDS)
    return tuple(f.bad[v] for f, v in values if v in f.bad)
