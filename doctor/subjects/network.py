"""Interfaces, addresses and name resolution as this machine sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface in kernel order (`ifindex`). Speed in Mb/s, None where the kernel says -1 or nothing."""

    name: str
    ipv4: tuple[str, ...] = ()
    """As a.b.c.d/len."""
    ipv6: tuple[str, ...] = ()
    ifindex: int | None = None
    state: str | None = None
    """operstate: up, down, unknown, …"""
    carrier: bool | None = None
    carrier_changes: int | None = None
    mtu: int | None = None
    speed: int | None = None
    type: int | None = None
    """ARPHRD: 1 Ethernet, 32 InfiniBand, 772 loopback."""
    flags: int | None = None
    virtual: bool = False
    pci: str | None = None
    driver: str | None = None
    bond_members: tuple[str, ...] = ()
    statistics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Network:
    """`resolve` holds the names that were asked: own host name, MASTER_ADDR, rendezvous hosts, peers."""

    hostname: str
    interfaces: tuple[Interface, ...] = ()
    resolve: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> addresses; an empty tuple is "asked and not found"."""
    hosts: tuple[tuple[str, str], ...] = ()
    """(address, name) of /etc/hosts."""
    default_interface: str | None = None
    listening: tuple[tuple[str, int], ...] | None = None
    """(address, port) of listening TCP sockets; None where they could not be read."""
