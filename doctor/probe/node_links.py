"""What a node's links are, for the probe's expectations: from the facts about GPUs and adapters."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.probe import NodeLinks
from fsdp_doctor.subjects.rdma import HcaPort, Rdma
from fsdp_doctor.tables.link_facts import pcie_gbps

PAYLOAD = 0.9412
"""Payload over signalling rate of an NVLink: NVML says 26562 MB/s for 25 GB/s."""
GT_PER_SECOND = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
P2P_READ = 0
EFA = "efa"


def node_links(host: str, facts: Facts, count: int) -> NodeLinks:
    """The links of `count` visible GPUs of this node; what nobody answered stays None."""
    gpus = _visible(facts)[:count]
    ports = _ports(facts)
    rates = [p.rate_gbps for p in ports if p.rate_gbps]
    return NodeLinks(
        host=host,
        gpus=len(gpus) or None,
        gpu_name=next((g.name for g in gpus if g.name), None),
        nvlink_gbps=_least([_nvlink(g) for g in gpus]),
        pcie_gbps=_least([_pcie(g) for g in gpus]),
        nic_gbps=sum(rates) / 8 if rates else None,
        nics=len(rates) or None,
        nic_kind=_kind(facts, ports),
        p2p=_p2p(gpus),
    )


def _visible(facts: Facts) -> list[Gpu]:
    gpus = facts.find(Gpus)
    if gpus is None:
        return []
    by_index = {g.index: g for g in gpus.present}
    if gpus.visible is None:
        return list(gpus.present)
    return [by_index[i] for i in gpus.visible if i in by_index]


def _nvlink(gpu: Gpu) -> float | None:
    """GB/s of the active links; None where NVML does not say, 0 where there are none."""
    if gpu.nvlinks is None:
        return None
    active = sum(bool(link.active) for link in gpu.nvlinks)
    if active == 0:
        return 0.0
    return None if gpu.nvlink_mbps is None else active * gpu.nvlink_mbps * PAYLOAD / 1e3


def _pcie(gpu: Gpu) -> float | None:
    """GB/s of the link at its best: an idle GPU lowers its generation."""
    generation = gpu.pcie_gen_max or gpu.pcie_gen
    width = gpu.pcie_width or gpu.pcie_width_max
    rate = pcie_gbps(GT_PER_SECOND.get(generation or 0), width)
    return None if rate is None else rate / 8


def _least(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return min(known) if known and len(known) == len(values) else None


def _p2p(gpus: Sequence[Gpu]) -> bool | None:
    """Whether every pair may read from each other; None where it was not asked."""
    indices = {g.index for g in gpus}
    states = [
        status
        for g in gpus
        for (peer, capability), status in g.p2p.items()
        if peer in indices and capability == P2P_READ
    ]
    return all(s == 0 for s in states) if states else None


def _ports(facts: Facts) -> list[HcaPort]:
    rdma = facts.find(Rdma)
    return [] if rdma is None else [p for h in rdma.hcas for p in h.ports if p.state == "ACTIVE"]


def _kind(facts: Facts, ports: Sequence[HcaPort]) -> str | None:
    rdma = facts.find(Rdma)
    if rdma is None or not ports:
        return None
    if any(h.driver == EFA for h in rdma.hcas):
        return "EFA"
    return "InfiniBand" if any(p.link_layer == "InfiniBand" for p in ports) else "RoCE"
