"""Interfaces, addresses, names and listening sockets."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from fsdp_doctor.facts.host import hostname
from fsdp_doctor.facts.parse import counters, integer, pci_parts
from fsdp_doctor.facts.pci import driver
from fsdp_doctor.facts.source import Json, Source, number, text
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.network import Interface, Network

FOLDER = "/sys/class/net"
BONDING = "bonding_masters"
"""The one file among the interfaces."""
INTERFACE_LIMIT = 2048
STATISTICS = (
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_crc_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "tx_carrier_errors",
    "collisions",
)
ROUTE_UP = 1
LISTEN = "0A"
HOSTS_LIMIT = 65536


def network(source: Source) -> Known[Network] | Unknown:
    """Interfaces by index and what names resolve to; unknown where neither could be asked."""
    answer = source.net()
    net: Mapping[str, Json] = {} if isinstance(answer, Unknown) else answer.value
    names = [n for n in source.listdir(FOLDER) if n != BONDING][:INTERFACE_LIMIT]
    if isinstance(answer, Unknown) and not names:
        return Unknown(answer.reason, enable=answer.enable)
    addresses = _object(net.get("interfaces"))
    found = [interface(source, n, _object(addresses.get(n))) for n in dict.fromkeys([*names, *addresses])]
    found.sort(key=lambda i: i.ifindex if i.ifindex is not None else 1 << 31)
    own = net.get("hostname")
    value = Network(
        hostname=own if isinstance(own, str) and own else hostname(source) or "unknown",
        interfaces=tuple(found),
        resolve={name: _texts(a) for name, a in _object(net.get("resolve")).items()},
        hosts=hosts(text(source, "/etc/hosts")),
        default_interface=default_interface(source),
        listening=listening(source),
    )
    return Known(value, f"{FOLDER} and the resolver")


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Json) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(dict.fromkeys(v for v in value if isinstance(v, str)))


def interface(source: Source, name: str, addresses: Mapping[str, Json]) -> Interface:
    """One interface of sysfs or of the resolver's answers alone."""
    folder = f"{FOLDER}/{name}"
    real = source.realpath(folder)
    speed = number(source, f"{folder}/speed")
    carrier = number(source, f"{folder}/carrier")
    parts = pci_parts(real)
    return Interface(
        name=name,
        ipv4=_texts(addresses.get("ipv4")),
        ipv6=_texts(addresses.get("ipv6")),
        ifindex=number(source, f"{folder}/ifindex"),
        state=text(source, f"{folder}/operstate", 64) or None,
        carrier=None if carrier is None else carrier != 0,
        carrier_changes=number(source, f"{folder}/carrier_changes"),
        mtu=number(source, f"{folder}/mtu"),
        speed=speed if speed is not None and 0 < speed < (1 << 31) - 1 else None,
        type=number(source, f"{folder}/type"),
        flags=number(source, f"{folder}/flags"),
        virtual="/devices/virtual/" in real,
        pci=parts[-1] if parts else None,
        driver=_driver(source, folder, real),
        bond_members=tuple((text(source, f"{folder}/bonding/slaves", 4096) or "").split()),
        statistics=counters(source, f"{folder}/statistics", STATISTICS),
    )


def _driver(source: Source, folder: str, real: str) -> str | None:
    """The driver of the device behind an interface, or of the PCI function that carries it."""
    device = real.rpartition("/net/")[0]
    while device and not device.endswith("/devices"):
        name = driver(source, device)
        if name is not None:
            return name
        if pci_parts(device)[-1:] == (device.rpartition("/")[2],):
            break
        device = device.rpartition("/")[0]
    return driver(source, f"{folder}/device")


def hosts(table: str | None) -> tuple[tuple[str, str], ...]:
    """(address, name) of /etc/hosts, a pair for each name of a line."""
    pairs: list[tuple[str, str]] = []
    for line in (table or "").splitlines():
        words = line.partition("#")[0].split()
        pairs += [(words[0], name) for name in words[1:]]
    return tuple(pairs[:HOSTS_LIMIT])


def default_interface(source: Source) -> str | None:
    """The interface of the default route with the lowest metric, IPv4 before IPv6."""
    routes: list[tuple[int, str]] = []
    for line in (text(source, "/proc/net/route") or "").splitlines()[1:]:
        w = line.split()
        if len(w) >= 8 and w[1] == w[7] == "00000000" and (integer(w[3], 16) or 0) & ROUTE_UP:
            routes.append((integer(w[6]) or 0, w[0]))
    if not routes:
        for line in (text(source, "/proc/net/ipv6_route") or "").splitlines():
            w = line.split()
            up = len(w) >= 10 and (integer(w[8], 16) or 0) & ROUTE_UP
            if up and w[0] == "0" * 32 and w[1] == "00" and w[9] != "lo":
                routes.append((integer(w[5], 16) or 0, w[9]))
    return min(routes, default=(0, None), key=lambda r: r[0])[1]


def listening(source: Source) -> tuple[tuple[str, int], ...] | None:
    """(address, port) of listening TCP sockets of this network namespace; None if unreadable."""
    tables = [text(source, f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    if all(t is None for t in tables):
        return None
    found: set[tuple[str, int]] = set()
    for table in tables:
        for line in (table or "").splitlines()[1:]:
            words = line.split()
            local = socket_address(words[1]) if len(words) > 3 and words[3] == LISTEN else None
            if local is not None:
                found.add(local)
    return tuple(sorted(found, key=lambda pair: (pair[1], pair[0])))


def socket_address(word: str) -> tuple[str, int] | None:
    """The kernel's "0100007F:1F90": the address in 32-bit words of the machine's own order."""
    host, _, port = word.partition(":")
    number_ = integer(port, 16)
    try:
        raw = bytes.fromhex(host)
    except ValueError:
        return None
    if number_ is None or not 0 <= number_ < 1 << 16 or len(raw) not in (4, 16):
        return None
    packed = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    return str(ipaddress.ip_address(packed)), number_
