"""Where the ranks of the job meet, by the launch command first and the environment second."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fsdp_doctor.engine.job import node_count
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.variables import Settings, settings
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.tables.endpoints import split_endpoint
from fsdp_doctor.tables.network import DEFAULT_PORT

OWN_STORE = ("torchrun", "accelerate", "deepspeed")
"""Launchers that open the store themselves and ignore MASTER_ADDR and MASTER_PORT of the shell."""
WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Host and port of the store. `port_text` is the port as written, where it is no number."""

    host: str | None
    port: int | None
    host_from: str
    """MASTER_ADDR, --rdzv-endpoint, …"""
    port_from: str
    port_text: str | None = None


def meeting(facts: Facts) -> Meeting | None:
    """The rendezvous of the job; None where it needs none (standalone, or nothing says there is one)."""
    launch = facts.find(Launch)
    if launch is not None and launch.launcher in OWN_STORE:
        return _of_launcher(launch)
    return _of_environment(settings(facts))


def _of_launcher(launch: Launch) -> Meeting | None:
    if launch.standalone:
        return None
    many = launch.nodes is not None and launch.nodes[1] > 1
    if launch.rdzv_endpoint:
        host, port = split_endpoint(launch.rdzv_endpoint)
        return Meeting(host or None, port, "--rdzv-endpoint", "--rdzv-endpoint")
    if launch.launcher == "torchrun" and not many and launch.master_port is None:
        return None
    if launch.master_addr is None and launch.master_port is None and not many:
        return None
    names = (
        ("main_process_ip", "main_process_port")
        if launch.launcher == "accelerate"
        else ("--master-addr", "--master-port")
    )
    port = launch.master_port if launch.master_port is not None else DEFAULT_PORT
    return Meeting(launch.master_addr, port, *names)


def _of_environment(variables: Settings) -> Meeting | None:
    host, port = variables.value("MASTER_ADDR"), variables.value("MASTER_PORT")
    if not host and not port:
        return None
    text = (port or "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
    bad = port if port is not None and number is None else None
    return Meeting((host or "").strip() or None, number, "MASTER_ADDR", "MASTER_PORT", bad)


def literal(host: str) -> bool:
    """Whether a host is an address and no name."""
    return _address(host) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def is_loopback(address: str) -> bool:
    """Whether an address is reached only from the machine itself (127.0.0.0/8, ::1)."""
    found = _address(address)
    return found is not None and found.is_loopback


def is_own_name(network: Network, host: str) -> bool:
    """Whether a name is this machine's, short or full."""
    own, other = network.hostname.lower().rstrip("."), host.lower().rstrip(".")
    if own == other:
        return True
    short = "." not in own or "." not in other
    return short and own.partition(".")[0] == other.partition(".")[0]


def addresses(network: Network, host: str) -> tuple[str, ...] | None:
    """What a host resolves to on this machine; None where it was not asked."""
    if literal(host):
        return (host,)
    return network.resolve.get(host)


def own_addresses(network: Network) -> frozenset[str]:
    """Every address of every interface, without its length."""
    return frozenset(a.partition("/")[0] for i in network.interfaces for a in (*i.ipv4, *i.ipv6))


def first_rank_here(facts: Facts, options: Options, network: Network, host: str | None) -> bool | None:
    """Whether rank 0, which opens the store, runs on this machine; None where nothing says."""
    launch, scheduler = facts.find(Launch), facts.find(Scheduler)
    if node_count(facts, options) == 1:
        return True
    if launch is not None and launch.node_rank is not None:
        return launch.node_rank == 0
    if launch is None and scheduler is not None and scheduler.rank is not None:
        return scheduler.rank == 0
    if scheduler is not None and scheduler.node_rank is not None:
        return scheduler.node_rank == 0
    if host is None:
        return None
    if is_own_name(network, host):
        return True
    found = addresses(network, host)
    return None if not found else any(a in own_addresses(network) for a in found)
