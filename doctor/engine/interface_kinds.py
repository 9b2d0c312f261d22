"""What an interface is by its name: physical, or one that leads nowhere between training nodes."""

from __future__ import annotations

import re

from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.tables import network as table

DOCKER_BRIDGE = re.compile(r"br-[0-9a-f]{12}\Z")
ARPHRD_LOOPBACK = 772


def oddity(interface: Interface) -> str | None:
    """Why other nodes are hardly reached through it; None for an ordinary interface."""
    name = interface.name
    if name == table.LOOPBACK or interface.type == ARPHRD_LOOPBACK:
        return "the loopback"
    if DOCKER_BRIDGE.match(name) or name.startswith(tuple(p for p in table.CONTAINER_PREFIXES if p != "br-")):
        return "a container bridge"
    if name.startswith(table.VIRTUAL_MACHINE_PREFIXES):
        return "a bridge for virtual machines"
    if name.startswith(table.VPN_PREFIXES):
        return "a VPN or tunnel"
    if name.startswith(table.DUMMY_PREFIXES):
        return "a dummy"
    return None


def physical(interface: Interface) -> bool:
    """A network card, or a bond or VLAN over cards."""
    return oddity(interface) is None and (not interface.virtual or bool(interface.bond_members))
