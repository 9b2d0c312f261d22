"""How NCCL reads its lists of interfaces and adapters, and which interfaces it then takes.

Facts of NCCL 2.30 (`misc/socket.cc`, `os/linux.cc`, `misc/utils.cc`): a list is comma-separated prefixes; a
leading `^` excludes, a further `=` asks for whole names; blanks count as part of a name. Without a list the
interfaces whose names begin with `ib` win, then those of the subnet of NCCL_COMM_ID, then all others that
are not docker, lo or virbr, then docker, lo and virbr.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.engine.variables import Settings
from fsdp_doctor.subjects.network import Interface, Network
from fsdp_doctor.tables import network as table
from fsdp_doctor.tables.nccl_variables import SOCKET_FAMILIES


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a list with its port, where one is given."""

    name: str
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Selector:
    """A list as NCCL parses it."""

    text: str
    entries: tuple[Entry, ...]
    exclude: bool = False
    exact: bool = False

    def match(self, entry: Entry, name: str, port: int | None = None) -> bool:
        """Whether one entry names this device and port."""
        named = name == entry.name if self.exact else name.startswith(entry.name)
        return named and (port is None or entry.port is None or entry.port == port)

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL keeps the device. An empty list keeps everything."""
        if not self.entries:
            return True
        return any(self.match(e, name, port) for e in self.entries) != self.exclude

    def unmatched(self, names: Iterable[str]) -> tuple[Entry, ...]:
        """Entries that name none of `names`, whatever their port."""
        known = tuple(names)
        return tuple(e for e in self.entries if not any(self.match(Entry(e.name), n) for n in known))


def selector(text: str) -> Selector:
    """Parse a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA."""
    rest, exclude, exact = text, False, False
    if rest.startswith("^"):
        rest, exclude = rest[1:], True
    if rest.startswith("="):
        rest, exact = rest[1:], True
    entries = []
    for token in rest.split(","):
        name, _, tail = token.partition(":")
        port = tail.split(":")[0]
        if name:
            number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else None
            entries.append(Entry(name, number))
    return Selector(text, tuple(entries), exclude, exact)


def running(interface: Interface) -> bool:
    """Whether the kernel counts it as up with a carrier, as far as sysfs says."""
    if interface.carrier is not None:
        return interface.carrier and interface.state != "down"
    return interface.state in ("up", "unknown", None)


def has_address(interface: Interface, family: str | None) -> bool:
    """Whether it has an address of the family that NCCL_SOCKET_FAMILY asks for (None: any)."""
    if family == "AF_INET":
        return bool(interface.ipv4)
    if family == "AF_INET6":
        return any(not a.startswith("::1/") for a in interface.ipv6)
    return bool(interface.ipv4) or any(not a.startswith("::1/") for a in interface.ipv6)


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL would use for its bootstrap (the first) and for sockets (all), and by which rule."""

    interfaces: tuple[Interface, ...]
    rule: str

    @property
    def first(self) -> Interface | None:
        """The bootstrap's interface."""
        return self.interfaces[0] if self.interfaces else None


def predict(
    interfaces: tuple[Interface, ...],
    ifname: str | None = None,
    family: str | None = None,
    comm_id: str | None = None,
) -> Choice:
    """The interfaces that NCCL would take, in its order; a list of one character is no list to it."""
    order = sorted(enumerate(interfaces), key=lambda p: (p[1].ifindex is None, p[1].ifindex or 0, p[0]))
    usable = [i for _, i in order if running(i) and has_address(i, family)]
    # getifaddrs lists every IPv4 address before the first IPv6 one.
    usable.sort(key=lambda i: not i.ipv4 or family == "AF_INET6")
    if ifname is not None and len(ifname) > 1:
        chosen = selector(ifname)
        return Choice(tuple(i for i in usable if chosen.takes(i.name)), f"NCCL_SOCKET_IFNAME={ifname}")
    first = tuple(i for i in usable if i.name.startswith(table.NCCL_FIRST))
    if first:
        return Choice(first, "names that begin with ib come first")
    near = _same_subnet(usable, comm_id)
    if near:
        return Choice(near, "the subnet of NCCL_COMM_ID")
    plain = tuple(i for i in usable if not i.name.startswith(table.NCCL_EXCLUDED))
    if plain:
        return Choice(plain, "every interface but docker, lo and virbr")
    for prefix in table.NCCL_EXCLUDED:
        last = tuple(i for i in usable if i.name.startswith(prefix))
        if last:
            return Choice(last, f"nothing runs but {prefix}")
    return Choice((), "no interface runs and has an address")


def choice(network: Network, variables: Settings) -> Choice:
    """NCCL's interfaces on this machine with these variables."""
    family = variables.value("NCCL_SOCKET_FAMILY")
    return predict(
        network.interfaces,
        variables.value("NCCL_SOCKET_IFNAME"),
        family if family in SOCKET_FAMILIES else None,
        variables.value("NCCL_COMM_ID"),
    )


def _same_subnet(usable: list[Interface], comm_id: str | None) -> tuple[Interface, ...]:
    host = (comm_id or "").rpartition(":")[0].strip("[]")
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return ()
    for interface in usable:
        for address in (*interface.ipv4, *interface.ipv6):
            try:
                if wanted in ipaddress.ip_interface(address).network:
                    return (interface,)
            except ValueError:
                continue
    return ()


def label(interface: Interface) -> str:
    """Name and first address, such as "eno1 (10.20.0.11)"."""
    address = next((a.partition("/")[0] for a in (*interface.ipv4, *interface.ipv6)), None)
    return f"{interface.name} ({address})" if address else interface.name
