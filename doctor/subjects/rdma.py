"""InfiniBand and RoCE adapters (HCAs) as sysfs shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HcaPort:
    """One port. `state` and `phys_state` are the words after the number, such as ACTIVE and LinkUp."""

    number: int
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    """InfiniBand or Ethernet."""
    lid: int | None = None
    sm_lid: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    """counters/ and hw_counters/ together."""
    gid_types: Mapping[int, str] = field(default_factory=dict)
    """GID index -> type, such as "RoCE v2"; only indices with a GID that is not zero."""
    netdev: str | None = None


@dataclass(frozen=True, slots=True)
class Hca:
    """One adapter."""

    name: str
    ports: tuple[HcaPort, ...] = ()
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    pci: str | None = None
    numa_node: int | None = None
    driver: str | None = None
    verbs: str | None = None
    """Its uverbs device, such as uverbs0."""


@dataclass(frozen=True, slots=True)
class Rdma:
    """All adapters. Never empty: no adapter is an unknown (absent) fact."""

    hcas: tuple[Hca, ...]
