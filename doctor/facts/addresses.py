"""Addresses of this machine's interfaces."""

from __future__ import annotations

import ipaddress
import socket

from fsdp_doctor.facts.source import Json

FAMILIES = {int(socket.AF_INET): "ipv4", int(socket.AF_INET6): "ipv6"}


def interface_addresses() -> dict[str, Json]:
    """Interface -> {"ipv4": ["a.b.c.d/len"], "ipv6": [...]}; empty where the kernel does not tell."""
    try:
        import psutil

        listed = psutil.net_if_addrs()
    except (ImportError, OSError):
        return {}
    found: dict[str, Json] = {}
    for name, addresses in listed.items():
        by_family: dict[str, list[str]] = {family: [] for family in FAMILIES.values()}
        for entry in addresses:
            family = FAMILIES.get(int(entry.family))
            if family:
                by_family[family].append(with_length(entry.address, entry.netmask))
        found[name] = {**by_family}
    return found


def with_length(address: str, netmask: str | None) -> str:
    """An address as a.b.c.d/len, without the scope of a link-local one."""
    plain = address.partition("%")[0]
    try:
        bits = int(ipaddress.ip_address(netmask or ""))
    except ValueError:
        return plain
    return f"{plain}/{bits.bit_count()}"
