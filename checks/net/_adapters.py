"""Which RDMA adapters and ports NCCL would use on this machine, and which of them are alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_doctor.engine.interfaces import Selector, selector
from fsdp_doctor.engine.variables import Settings
from fsdp_doctor.subjects.rdma import Hca, HcaPort, Rdma
from fsdp_doctor.tables import network as table

ACTIVE = "ACTIVE"
INFINIBAND = "InfiniBand"
ETHERNET = "Ethernet"


@dataclass(frozen=True, slots=True)
class Port:
    """One port with its adapter."""

    hca: Hca
    port: HcaPort

    @property
    def name(self) -> str:
        """Such as "mlx5_4", with ":2" where the adapter has more than one port."""
        return f"{self.hca.name}:{self.port.number}" if len(self.hca.ports) > 1 else self.hca.name

    @property
    def active(self) -> bool:
        """Whether NCCL would open it."""
        return self.port.state == ACTIVE

    @property
    def kind(self) -> tuple[str | None, str | None, int]:
        """Link layer, model and port number: ports that equal each other here do the same work."""
        return self.port.link_layer, self.hca.hca_type, self.port.number

    @property
    def state(self) -> str:
        """Such as "DOWN/Polling"."""
        return "/".join(s for s in (self.port.state, self.port.phys_state) if s) or "unknown"


def is_efa(hca: Hca) -> bool:
    """Whether it is Amazon's EFA, which NCCL reaches through a plug-in only."""
    if hca.driver is not None:
        return hca.driver == table.EFA_DRIVER
    return (hca.hca_type or "").lower().startswith("0xefa") or hca.name.startswith(table.EFA_NAMES)


def wanted(variables: Settings) -> Selector | None:
    """NCCL_IB_HCA, parsed; None where it is not set."""
    value = variables.value("NCCL_IB_HCA")
    return selector(value) if value else None


def ports(rdma: Rdma, variables: Settings) -> tuple[Port, ...]:
    """The ports of verbs adapters that NCCL_IB_HCA leaves to NCCL, whatever their state."""
    chosen = wanted(variables)
    return tuple(
        Port(h, p)
        for h in rdma.hcas
        if not is_efa(h)
        for p in h.ports
        if chosen is None or chosen.takes(h.name, p.number)
    )


def explicit(chosen: Selector | None, port: Port) -> bool:
    """Whether NCCL_IB_HCA names this very adapter and not only a prefix of it."""
    if chosen is None or chosen.exclude:
        return False
    return any(e.name == port.hca.name and e.port in (None, port.port.number) for e in chosen.entries)


def groups(found: tuple[Port, ...]) -> Iterator[tuple[Port, ...]]:
    """Ports that are alike, in the order of first sight."""
    seen: dict[tuple[str | None, str | None, int], list[Port]] = {}
    for port in found:
        seen.setdefault(port.kind, []).append(port)
    for alike in seen.values():
        yield tuple(alike)


def names(found: tuple[Port, ...] | list[Port]) -> str:
    """Names in a row."""
    return ", ".join(p.name for p in found)


def card(hca: Hca) -> str | None:
    """The PCI address without the function: ports of one card share it."""
    return hca.pci.rpartition(".")[0] if hca.pci else None
