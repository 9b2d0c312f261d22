"""Bandwidths that healthy machines reach: per GPU product, per PCIe generation, per kind of network."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECKED_ON = "2026-12"
SOURCE = (
    "Published nccl-tests and torch sweeps of A100, H100, H200 and B200 nodes (ml-engineering, "
    "azurehpc-health-checks); NVIDIA data sheets for link rates"
)


@dataclass(frozen=True, slots=True)
class NvlinkProduct:
    """GB/s (10^9) per GPU and direction. Ring figures are busbw of all-gather and reduce-scatter."""

    pattern: str
    total: float
    low: float
    high: float
    all_reduce: float
    """busbw that an all-reduce may show, with NVLink SHARP where the GPU has it: no wire speed."""
    bend: int
    firm: bool = True


MIB = 1 << 20

NVLINK_PRODUCTS: tuple[NvlinkProduct, ...] = (
    NvlinkProduct(r"GB[23]00", 900, 670, 700, 850, 40 * MIB, firm=False),
    NvlinkProduct(r"B[23]00", 900, 670, 685, 846, 40 * MIB),
    NvlinkProduct(r"H800", 200, 155, 165, 215, 20 * MIB),
    NvlinkProduct(r"H20\b(?! NVL|-PCIe)", 450, 340, 370, 480, 20 * MIB),
    NvlinkProduct(r"(?<![A-Z])H[12]00\b(?! NVL| PCIe)", 450, 345, 370, 482, 20 * MIB),
    NvlinkProduct(r"A100-SXM", 300, 220, 235, 235, 20 * MIB),
    NvlinkProduct(r"A800-SXM", 200, 150, 160, 160, 20 * MIB, firm=False),
    NvlinkProduct(r"V100-SXM", 150, 110, 130, 130, 20 * MIB),
)
"""Boards that join every GPU by NVLink. First match wins."""

NVLINK_SHARE = (0.70, 0.82)
"""A ring's busbw as a part of one GPU's NVLink rate, for products that are not in the table."""
FEW_GPUS, FEW_SHARE = 3, 0.80
"""Up to so many GPUs a ring has fewer channels; published figures begin at four."""


@dataclass(frozen=True, slots=True)
class PcieRing:
    """busbw in GB/s of a ring over PCIe; `at_least` is the link's GB/s from which the row counts."""

    at_least: float
    p2p: tuple[float, float]
    host_memory: tuple[float, float]
    """Without P2P: through host memory, bound by CPU and NUMA."""


PCIE_RINGS: tuple[PcieRing, ...] = (
    PcieRing(50, (20, 40), (15, 35)),
    PcieRing(25, (15, 22), (5, 19)),
)
"""Reports of users, no vendor's gates: they never make a failure."""
PCIE_BEND = 8 * MIB

NETWORK_SHARE = (0.74, 0.90)
"""Part of the sum of a node's adapters that a ring between nodes reaches by RDMA."""
SOCKET_SHARE = (0.24, 0.50)
"""The same over TCP sockets."""
SOCKET_GBPS = 8.0
"""GB/s that sockets do not exceed, whatever the adapters."""
NETWORK_BEND = 144 * MIB
"""With up to four nodes; it grows with their number: 32 nodes gather 2 GB at half of an all-reduce's rate."""
RDMA_KINDS = frozenset(("infiniband", "roce", "efa"))


def nvlink_product(name: str | None) -> NvlinkProduct | None:
    """The row of a product name such as "NVIDIA H200"; None where its board has no full NVLink."""
    if name is None:
        return None
    return next((p for p in NVLINK_PRODUCTS if re.search(p.pattern, name)), None)


def pcie_ring(gbps: float | None) -> PcieRing | None:
    """The row of a PCIe link's rate in GB/s."""
    return next((r for r in PCIE_RINGS if gbps is not None and gbps >= r.at_least), None)
