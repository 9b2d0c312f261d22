"""Ports: the one of the rendezvous, and those that connections take."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._rendezvous import Meeting, first_rank_here, meeting
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.network import Network
from fsdp_doctor.tables.network import PRIVILEGED_PORTS, SMALL_PORT_RANGE, TINY_PORT_RANGE

LAST_PORT = 65535
WILD = ("0.0.0.0", "::")


@check("NET005", Row.START, needs=(Network,), uses=(*job.USES, Environment, Host), tags=("net",))
def rendezvous_port_is_unusable(facts: Facts, options: Options) -> Iterator[Finding]:
    """The rendezvous port is no port, is reserved, or is taken

    What: MASTER_PORT (or the port of --rdzv-endpoint, --master-port) does not parse, lies outside 1 to
        65535, is below 1024 for a user without root, or something already listens on it where rank 0
        would open its store.
    Why: rank 0 cannot bind ("Address already in use", "Permission denied") and the job ends before the
        first collective; if another job's store listens there, ranks may join the wrong job.
    Fix: choose a free port above 1024 and outside the ephemeral range; stop what holds it.
    Sources: PyTorch documentation of torchrun and TCPStore, bind(2), ip(7).
    """
    network, place = facts[Network], meeting(facts)
    if place is None or (place.port is None and place.port_text is None):
        yield ok("no rendezvous port is named; the launcher picks one")
        return
    subject = Subject(variable=place.port_from)
    many = job.multi_node(facts, options)
    if place.port is None:
        yield fail(
            f"{place.port_from} is {(place.port_text or '')[:80]!r}{_hint(place.port_text)}",
            "a number from 1 to 65535",
            subject=subject,
            fix=Fix(f"Set {place.port_from} to a free port such as 29500"),
        )
        return
    if place.port > LAST_PORT or (place.port == 0 and many):
        yield fail(
            f"{place.port_from} is {place.port}",
            "a number from 1 to 65535" + (", the same on every node" if many else ""),
            subject=subject,
            fix=Fix(f"Set {place.port_from} to a free port such as 29500"),
        )
        return
    here = first_rank_here(facts, options, network, place.host)
    yield from _judge(facts, network, place, here, subject)


def _hint(text: str | None) -> str:
    named = (text or "").startswith(("tcp://", "udp://"))
    return ", which Kubernetes sets for a service called master" if named else ""


def _judge(
    facts: Facts, network: Network, place: Meeting, here: bool | None, subject: Subject
) -> Iterator[Finding]:
    host, port = facts.find(Host), place.port or 0
    if here is not False and 0 < port < PRIVILEGED_PORTS and host is not None and host.uid not in (None, 0):
        say = fail if here else warn
        yield say(
            f"{place.port_from} is {port}, which only root may open (uid {host.uid})",
            f"a port from {PRIVILEGED_PORTS} on",
            subject=subject,
            fix=Fix(f"Set {place.port_from} to a free port such as 29500"),
        )
        return
    taken = [a for a, p in network.listening or () if p == port and port]
    if here and taken and facts.find(Launch) is not None:
        yield fail(
            f"port {port} ({place.port_from}) is already listened on at {', '.join(sorted(set(taken)))}",
            "a free port where rank 0 opens its store",
            why="rank 0 ends with EADDRINUSE, or this job's ranks join another job's store.",
            subject=subject,
            fix=Fix(
                f"Choose another port, or find and stop what holds {port}",
                f"ss -ltnp 'sport = :{port}'",
            ),
        )
        return
    span = None if host is None else host.port_range
    if span is not None and span[0] <= port <= span[1]:
        yield info(
            f"{place.port_from} {port} lies in the ephemeral range {span[0]}-{span[1]}: an outgoing "
            "connection may hold it when the job starts",
            subject=subject,
        )
        return
    yield ok(f"{place.port_from} is {port}" + ("" if network.listening is None else ", not in use here"))


@check("NET006", Row.NCCL, needs=(Host,), uses=job.USES, tags=("net",))
def few_ephemeral_ports(facts: Facts, options: Options) -> Iterator[Finding]:
    """Too few ephemeral ports for the connections of a large job

    What: net.ipv4.ip_local_port_range leaves only a few ports for connections that name none.
    Why: NCCL's bootstrap and proxies and gloo's full mesh open several connections per rank and peer;
        when the range is used up, connect() fails with EADDRNOTAVAIL in the middle of start-up.
    Fix: widen the range, and open the same range in the firewall between the nodes.
    Sources: Linux ip-sysctl documentation, NCCL user guide (networking troubleshooting).
    """
    span = facts[Host].port_range
    if span is None:
        yield skip("net.ipv4.ip_local_port_range could not be read", enable="mount /proc in the container")
        return
    low, high = span
    count = high - low + 1
    wanted = f"at least {SMALL_PORT_RANGE} ports"
    fix = Fix(
        "Widen the range",
        'sudo sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
        Risk.NEEDS_ROOT,
        Owner.ADMIN,
    )
    said = f"ephemeral ports {low}-{high}: {max(count, 0)}"
    if count >= SMALL_PORT_RANGE:
        yield ok(said)
    elif count < TINY_PORT_RANGE and job.multi_node(facts, options):
        yield fail(said, wanted, fix=fix)
    else:
        yield warn(said, wanted, fix=fix)
