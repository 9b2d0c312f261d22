"""Names: this machine's own, and the one under which the ranks meet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_doctor.checks.net._rendezvous import (
    WILDCARDS,
    addresses,
    first_rank_here,
    is_loopback,
    is_own_name,
    literal,
    meeting,
    own_addresses,
)
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.network import Network

USES = (*job.USES, Environment, Host)
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\Z")


@check("NET001", Row.NCCL, needs=(Network,), uses=USES, tags=("net",))
def own_name_is_loopback(facts: Facts, options: Options) -> Iterator[Finding]:
    """The machine's own name leads to a loopback address in a job of several nodes

    What: the host name of this machine resolves to 127.0.0.0/8 or ::1 on the machine itself, as Debian's
        and Ubuntu's installers write it (127.0.1.1).
    Why: gloo listens on the address its own host name leads to, and torchrun hands the host name of the
        first node to the others as MASTER_ADDR. The other nodes then connect to themselves: connection
        refused, or a hang in the first collective of a gloo group (checkpoints, object collectives).
    Fix: give the name its real address in /etc/hosts, or name the interface in GLOO_SOCKET_IFNAME and pass
        an address as MASTER_ADDR.
    Sources: PyTorch distributed documentation (choosing the network interface), gloo tcp transport, hosts(5).
    """
    network = facts[Network]
    found = network.resolve.get(network.hostname)
    if found is None:
        yield skip(f"the name {network.hostname!r} was not resolved", enable="record on the machine itself")
        return
    local = [a for a in found if is_loopback(a)]
    real = [a for a in found if not is_loopback(a)]
    multi = job.multi_node(facts, options)
    if not local or not is_loopback(found[0]):
        yield ok(f"{network.hostname} is {', '.join(found) or 'not resolved'}")
        return
    said = f"{network.hostname} resolves to {', '.join(found)} on this machine"
    if multi is False:
        yield ok(f"{said}, which is enough on a single node")
        return
    if multi is None:
        yield info(f"{said}: harmless on one node, and a fault when it is one of several")
        return
    place = meeting(facts)
    master = place is not None and place.host is not None and is_own_name(network, place.host)
    fix = Fix(
        f"Map {network.hostname} to its real address in /etc/hosts instead of {local[0]}",
        risk=Risk.NEEDS_ROOT,
        owner=Owner.ADMIN,
    )
    if real or (settings(facts).on("GLOO_SOCKET_IFNAME") and not master):
        yield warn(said, "its address on the network of the job, alone", fix=fix)
        return
    yield fail(
        said + (f", and it is the job's {place.host_from}" if master and place is not None else ""),
        "its address on the network of the job",
        fix=fix,
        row=Row.START if master else None,
    )


@check("NET002", Row.START, needs=(Network,), uses=USES, tags=("net",))
def rendezvous_does_not_resolve(facts: Facts, options: Options) -> Iterator[Finding]:
    """The rendezvous host cannot be resolved

    What: MASTER_ADDR, --rdzv-endpoint or --master-addr is a name that this machine's resolver does not know.
    Why: the ranks of this node cannot reach the store, retry until the rendezvous times out and the job
        does not start; the other nodes see only that some ranks never arrived.
    Fix: pass an address or a name that every node resolves; check spelling, /etc/hosts and DNS.
    Sources: PyTorch documentation of torchrun and of init_process_group (env://), getaddrinfo(3).
    """
    network, place = facts[Network], meeting(facts)
    if place is None or place.host is None:
        yield ok("no rendezvous host is named")
        return
    found = addresses(network, place.host)
    if found is None:
        yield skip(
            f"{place.host_from} {place.host} was not resolved on the machine",
            enable="record with the variables or the launch command of the job",
        )
    elif not found:
        yield fail(
            f"{place.host_from} is {place.host!r}, which this machine cannot resolve",
            "a name that resolves on every node, or an address",
            subject=Subject(variable=place.host_from),
            fix=Fix(f"Correct {place.host_from}, or add {place.host} to DNS or to /etc/hosts of every node"),
        )
    elif not literal(place.host):
        yield ok(f"{place.host_from} {place.host} is {', '.join(found)}")


@check("NET003", Row.START, needs=(Network,), uses=USES, tags=("net",))
def rendezvous_is_not_reachable_by_others(facts: Facts, options: Options) -> Iterator[Finding]:
    """Nodes of one job would each meet with themselves

    What: in a job of several nodes the rendezvous host is localhost, a loopback or a wildcard address, is
        missing, or is an address that the first node does not have.
    Why: every node then waits at its own store for ranks that wait elsewhere, until the timeout.
    Fix: use the address of the first node on the network that all nodes share, the same on every node.
    Sources: PyTorch documentation of torchrun (deployment on several nodes) and of MASTER_ADDR.
    """
    network, place = facts[Network], meeting(facts)
    if not job.multi_node(facts, options):
        yield ok("not a job of several nodes")
        return
    host = None if place is None else place.host
    name = "MASTER_ADDR" if place is None else place.host_from
    fix = Fix(f"Set {name} to the address of the first node, the same on every node")
    wanted = "an address of the first node that the others reach"
    subject = Subject(variable=name)
    if host is None:
        launcher = facts.find(Launch)
        if launcher is None and place is None:
            yield ok("no rendezvous is named here")
            return
        yield fail(f"several nodes, and {name} is not set", wanted, subject=subject, fix=fix)
        return
    found = addresses(network, host)
    if host in WILDCARDS:
        yield fail(f"{name} is {host}, which is no destination", wanted, subject=subject, fix=fix)
    elif host.lower().rstrip(".") == "localhost" or is_loopback(host):
        yield fail(f"{name} is {host} in a job of several nodes", wanted, subject=subject, fix=fix)
    elif found and all(is_loopback(a) for a in found) and not is_own_name(network, host):
        yield fail(
            f"{name} {host} resolves to {', '.join(found)} on this machine", wanted, subject=subject, fix=fix
        )
    elif found and _foreign(facts, options, network, host, found):
        yield warn(
            f"rank 0 is on this machine, and {name} {host} ({', '.join(found)}) is none of its addresses "
            f"({', '.join(sorted(a for a in own_addresses(network) if not is_loopback(a))) or 'none'})",
            wanted,
            subject=subject,
            fix=fix,
        )
    else:
        yield ok(f"{name} is {host}")


def _foreign(facts: Facts, options: Options, network: Network, host: str, found: tuple[str, ...]) -> bool:
    machine = facts.find(Host)
    if machine is None or machine.container is not None or not own_addresses(network):
        return False  # a service address that is forwarded is common in front of containers
    here = first_rank_here(facts, options, network, None)
    return here is True and not is_own_name(network, host) and not set(found) & own_addresses(network)


@check("NET004", Row.START, needs=(Network,), uses=USES, tags=("net",))
def host_name_is_unfit(facts: Facts, options: Options) -> Iterator[Finding]:
    """The host name is empty, localhost or invalid, or /etc/hosts contradicts itself

    What: the machine's name is no name that other nodes could use, or /etc/hosts gives one name two
        different addresses.
    Why: torchrun, NCCL and schedulers tell nodes apart by name; two nodes called localhost look like one
        host, and a name with two addresses is sometimes the wrong one.
    Fix: set a unique name with hostnamectl and leave one line per name in /etc/hosts.
    Sources: hostname(7), hosts(5), NCCL user guide (NCCL_HOSTID).
    """
    network = facts[Network]
    name, multi = network.hostname, job.multi_node(facts, options)
    plain = name.strip().rstrip(".").lower()
    fix = Fix(
        "Give the machine a unique name", "sudo hostnamectl set-hostname NAME", Risk.NEEDS_ROOT, Owner.ADMIN
    )
    unfit = plain.partition(".")[0] in ("", "localhost") or plain == "(none)"
    if unfit and multi:
        yield fail(f"the host name is {name!r} in a job of several nodes", "a name of its own", fix=fix)
    elif unfit:
        yield info(f"the host name is {name!r}: fine alone, not among several nodes", fix=fix)
    elif len(plain) > 253 or not all(LABEL.match(part) for part in plain.split(".")):
        report = warn(f"the host name {name[:80]!r} is not valid", "letters, digits and hyphens", fix=fix)
        yield report if multi else info(report.found, expected=report.expected, fix=fix)
    doubled = sorted(_doubled(network))
    for who, several in doubled[:5]:
        line = f"/etc/hosts gives {who} the addresses {', '.join(several)}"
        if multi:
            yield warn(
                line,
                "one address per name",
                subject=Subject(path="/etc/hosts"),
                fix=Fix(f"Leave the right line for {who} in /etc/hosts", None, Risk.NEEDS_ROOT, Owner.ADMIN),
            )
        else:
            yield info(line, subject=Subject(path="/etc/hosts"))
    if not unfit and not doubled:
        yield ok(f"the host name is {name}")


def _doubled(network: Network) -> Iterator[tuple[str, tuple[str, ...]]]:
    seen: dict[tuple[str, bool], list[str]] = {}
    for address, name in network.hosts:
        if not is_loopback(address) and literal(address):
            row = seen.setdefault((name.lower(), ":" in address), [])
            if address not in row:
                row.append(address)
    for (name, _), several in seen.items():
        if len(several) > 1 and not name.startswith(("localhost", "ip6-")):
            yield name, tuple(several)
