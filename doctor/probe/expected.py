"""What bandwidth the links allow: inside a node by NVLink or PCIe, between nodes by their adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_doctor.subjects.fabric import Expectation
from fsdp_doctor.subjects.probe import ALL_REDUCE, FSDP_OPS, NodeLinks, ProbeResult
from fsdp_doctor.tables.fabric_figures import (
    FEW_GPUS,
    FEW_SHARE,
    NETWORK_BEND,
    NETWORK_SHARE,
    NVLINK_SHARE,
    PCIE_BEND,
    RDMA_KINDS,
    SOCKET_GBPS,
    SOCKET_SHARE,
    nvlink_product,
    pcie_ring,
)

KNOWN_PART = 0.9
"""Part of a product's NVLink rate that must be there for the product's figures to count."""


@dataclass(frozen=True, slots=True)
class Reach:
    """GB/s (busbw) of a ring over one kind of link."""

    low: float
    high: float
    basis: str
    bend: int
    firm: bool = True
    all_reduce: float | None = None


def expectations(result: ProbeResult) -> tuple[tuple[Expectation, ...], str]:
    """One per operation, and "" — or none, and why nothing can be expected."""
    if result.device != "cuda" or result.backend != "nccl":
        return (), f"{result.backend} on {result.device}: no link has an expected bandwidth"
    if result.world_size < 2:
        return (), "one rank moves no bytes"
    if not result.links:
        return (), "what the GPUs' links are is not known"
    hosts = max(len({r.host for r in result.ranks}), 1)
    reach, why = _reach(result, hosts)
    if reach is None:
        return (), why
    made = []
    for op in result.plan.ops:
        if op in FSDP_OPS or op == ALL_REDUCE:
            high = max(reach.high, reach.all_reduce or 0.0) if op == ALL_REDUCE else reach.high
            made.append(Expectation(op, reach.low, high, reach.basis, reach.bend, reach.firm))
    return tuple(made), "" if made else "no operation with an expected bandwidth was measured"


def _reach(result: ProbeResult, hosts: int) -> tuple[Reach | None, str]:
    per_node = max(result.world_size // hosts, 1)
    inner = [_inside(n, per_node) for n in result.links] if per_node > 1 else []
    if hosts == 1:
        known = [i for i in inner if i is not None]
        return (
            (min(known, key=lambda r: r.low), "")
            if known
            else (None, "the rate of the GPUs' links is not known")
        )
    outer = [between_nodes(n, hosts) for n in result.links]
    known = [r for r in (*inner, *outer) if r is not None]
    if any(r is None for r in outer):
        return None, "the rate of the nodes' adapters is not known"
    narrow = min(known, key=lambda r: r.low)
    high = min(r.high for r in known)
    return Reach(narrow.low, high, narrow.basis, max(r.bend for r in known), all(r.firm for r in known)), ""


def _inside(links: NodeLinks, gpus: int) -> Reach | None:
    product = nvlink_product(links.gpu_name)
    few = FEW_SHARE if gpus <= FEW_GPUS else 1.0
    whole = links.nvlink_gbps is None or links.nvlink_gbps == 0
    if product is not None and (whole or (links.nvlink_gbps or 0) >= KNOWN_PART * product.total):
        basis = f"{links.gpu_name}: NVLink {product.total:.0f} GB/s per GPU and direction"
        firm = product.firm and gpus > FEW_GPUS
        return Reach(product.low * few, product.high, basis, product.bend, firm, product.all_reduce)
    if links.nvlink_gbps:
        low, high = (share * links.nvlink_gbps for share in NVLINK_SHARE)
        basis = f"NVLink {links.nvlink_gbps:.0f} GB/s per GPU and direction"
        return Reach(low * few, high, basis, PCIE_BEND, firm=False)
    ring = pcie_ring(links.pcie_gbps)
    if ring is None:
        return None
    low, high = ring.host_memory if links.p2p is False else ring.p2p
    way = "through host memory, without P2P" if links.p2p is False else "with P2P"
    return Reach(low, high, f"PCIe {links.pcie_gbps:.0f} GB/s {way}", PCIE_BEND, firm=False)


def between_nodes(links: NodeLinks, nodes: int) -> Reach | None:
    """What a ring over so many nodes reaches by their adapters; None where these are not known."""
    if not links.nic_gbps:
        return None
    rdma = (links.nic_kind or "").lower() in RDMA_KINDS
    low, high = (share * links.nic_gbps for share in (NETWORK_SHARE if rdma else SOCKET_SHARE))
    if not rdma:
        low, high = min(low, SOCKET_GBPS * SOCKET_SHARE[0] / SOCKET_SHARE[1]), min(high, SOCKET_GBPS)
    count = f"{links.nics} adapters, " if links.nics else ""
    kind = f"{links.nic_kind} " if links.nic_kind else ""
    basis = f"{count}{kind}{links.nic_gbps:.4g} GB/s per node"
    return Reach(low, high, basis, NETWORK_BEND * max(nodes, 4) // 4, firm=rdma)


def path_candidates(result: ProbeResult) -> Sequence[tuple[str, float, float]]:
    """(Path in words, low, high) of slower ways that bytes may take, in GB/s (busbw)."""
    found: list[tuple[str, float, float]] = []
    several = len({r.host for r in result.ranks}) > 1
    for links in result.links[:1]:
        if several and links.nic_gbps:
            if (links.nics or 0) > 1:
                one = links.nic_gbps / (links.nics or 1)
                found.append(("one adapter instead of all", 0.6 * one, one))
            found.append(("TCP sockets instead of RDMA", 0.0, SOCKET_GBPS))
        ring = pcie_ring(links.pcie_gbps)
        fast = nvlink_product(links.gpu_name) is not None or bool(links.nvlink_gbps)
        if ring is not None and fast and not several:
            found.append(("PCIe instead of NVLink", 0.75 * ring.p2p[0], ring.p2p[1]))
            found.append(("host memory (SHM) instead of NVLink: P2P is off", 0.0, ring.host_memory[1]))
        elif ring is not None and links.p2p and not several:
            found.append(("host memory (SHM) instead of P2P", 0.0, ring.host_memory[1]))
    return found
