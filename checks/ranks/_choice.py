"""Which interface NCCL is predicted to take on each machine of the job."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.engine.interfaces import Choice, predict
from fsdp_doctor.subjects.network import Interface
from fsdp_doctor.subjects.rank_set import RankDigest
from fsdp_doctor.tables.nccl_variables import SOCKET_FAMILIES

REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Chosen:
    """One machine, by its first rank, and the interface of NCCL's bootstrap."""

    rank: RankDigest
    interface: Interface
    rule: str

    @property
    def addresses(self) -> tuple[str, ...]:
        """IPv4 first, as NCCL lists them, with their lengths; link-local IPv6 left out."""
        wanted = self.rank.environment.get("NCCL_SOCKET_FAMILY")
        v6 = tuple(a for a in self.interface.ipv6 if not a.lower().startswith("fe80"))
        return (v6 or self.interface.ipv4) if wanted == "AF_INET6" else (self.interface.ipv4 or v6)

    @property
    def address(self) -> str | None:
        """The first address without its length."""
        return self.addresses[0].partition("/")[0] if self.addresses else None

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
        """The network of the first address."""
        try:
            return ipaddress.ip_interface(self.addresses[0]).network if self.addresses else None
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """Such as "node-a eno1 (10.0.0.1)"."""
        where = f" ({self.address})" if self.address else ""
        return f"{self.rank.host or f'rank {self.rank.rank}'} {self.interface.name}{where}"


def predicted(rank: RankDigest) -> Choice:
    """NCCL's choice on the machine of a rank, with the rank's variables."""
    family = rank.environment.get("NCCL_SOCKET_FAMILY")
    ifname = rank.environment.get("NCCL_SOCKET_IFNAME")
    return predict(
        rank.interfaces,
        None if ifname is None or REDACTED in ifname else ifname,
        family if family in SOCKET_FAMILIES else None,
        rank.environment.get("NCCL_COMM_ID"),
    )


def choices(firsts: Iterable[RankDigest]) -> tuple[Chosen, ...]:
    """Machines whose interface is known."""
    found = []
    for rank in firsts:
        choice = predicted(rank)
        if choice.first is not None:
            found.append(Chosen(rank, choice.first, choice.rule))
    return tuple(found)
