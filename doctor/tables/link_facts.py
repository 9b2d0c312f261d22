"""Limits and bit masks of the links between GPUs, switches, adapters and the CPU."""

from __future__ import annotations

from collections.abc import Mapping

CHECKED_ON = "2026-11"

NVLINK_REPLAY_WARN = 100
NVLINK_CRC_WARN = 10_000
"""Absolute counts since the driver loaded; single replays are repaired by the link and harmless."""

PCIE_REPLAY_WARN = 1000
"""Replays since the driver loaded. A sound link makes a handful."""
AER_CORRECTABLE_WARN = 10_000
"""Corrected PCIe errors since boot; a sound link makes a few at power-on."""

ACS_SOURCE_VALIDATION = 0x01
ACS_REDIRECT = 0x04 | 0x08 | 0x10
"""P2P request redirect, completion redirect, upstream forwarding: each sends peer traffic to the root."""
ACS_BITS: Mapping[int, str] = {
    0x01: "SrcValid",
    0x02: "TransBlk",
    0x04: "ReqRedir",
    0x08: "CmpltRedir",
    0x10: "UpstreamFwd",
    0x20: "EgressCtrl",
    0x40: "DirectTrans",
}
"""ACS control register, PCI Express base specification; lspci's names."""

PCIE_ENCODING: tuple[tuple[float, float], ...] = ((5.0, 0.8), (32.0, 128 / 130), (64.0, 0.98))
"""(GT/s up to, share of raw bits that carry data)."""
PCIE_GENERATIONS: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s -> generation."""
HCA_SHARE = 0.9
"""A slot slower than this part of the port's rate is the bottleneck, protocol overhead left aside."""

NVLS_CAPABILITY = (9, 0)
"""First compute capability with in-switch reduction (NVLink SHARP)."""

TOPOLOGY_FROM_PLUGIN = frozenset(("efa",))
"""RDMA drivers whose NCCL plug-in brings the topology file of its cloud machines."""


def pcie_gbps(speed: float | None, width: int | None) -> float | None:
    """Gb/s that a PCIe link of `speed` GT/s and `width` lanes carries in one direction."""
    if speed is None or width is None or speed <= 0 or width <= 0:
        return None
    share = next((s for limit, s in PCIE_ENCODING if speed <= limit), PCIE_ENCODING[-1][1])
    return speed * width * share


def acs_words(control: int) -> str:
    """The set bits of an ACS control register as lspci prints them."""
    return " ".join(f"{name}+" for bit, name in ACS_BITS.items() if control & bit) or "off"
