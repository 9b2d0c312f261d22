"""The network cards themselves: speed, flaps, errors, bonds and MTU."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine import job
from fsdp_doctor.engine.interface_kinds import oddity, physical
from fsdp_doctor.engine.interfaces import choice, has_address, label, running
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.network import Interface, Network
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.tables import network as table

ETHERNET = 1
JOB = (*job.USES, Environment, Rdma)


def _cards(network: Network) -> list[Interface]:
    """Cards and bonds that carry addresses; a card of a bond carries none and is judged with it."""
    members = {m for i in network.interfaces for m in i.bond_members}
    return [i for i in network.interfaces if physical(i) and (i.name in members or has_address(i, None))]


@check("NET011", Row.SLOW, needs=(Network, Gpus), uses=JOB, tags=("net",))
def card_is_slow(facts: Facts, options: Options) -> Iterator[Finding]:
    """Data between nodes would pass a network card of 1 Gb/s or less

    What: the job spans nodes, there is no RDMA adapter in use, and the interface that NCCL would take runs
        at 1000 Mb/s or less.
    Why: FSDP gathers every parameter twice and reduces every gradient once per step: a model of 7 billion
        parameters moves tens of GB per step and rank, which is minutes at 1 Gb/s.
    Fix: use the fast card (NCCL_SOCKET_IFNAME), check cable and switch port, or keep the job on one node.
    Sources: Linux sysfs-class-net (speed), NCCL user guide (networking), FSDP paper (communication volume).
    """
    network, rdma = facts[Network], facts.find(Rdma)
    found = choice(network, settings(facts))
    slow = [i for i in found.interfaces if i.speed is not None and i.speed <= table.SLOW_NIC_MBPS]
    fast = rdma is not None and any(p.state == "ACTIVE" for h in rdma.hcas for p in h.ports)
    used = ", ".join(
        f"{label(i)} {i.speed if i.speed is not None else '?'} Mb/s" for i in found.interfaces[:4]
    )
    if job.multi_node(facts, options) and slow and not fast and len(slow) == len(found.interfaces):
        yield warn(
            f"NCCL would send between nodes over {used}, and there is no active RDMA adapter",
            f"more than {table.SLOW_NIC_MBPS} Mb/s",
            subject=Subject(device=slow[0].name),
            fix=Fix(
                "Name a faster card in NCCL_SOCKET_IFNAME; check cable and switch port",
                f"ethtool {slow[0].name}",
                owner=Owner.ADMIN,
            ),
        )
    else:
        yield ok(used or "no interface is up")


@check("NET012", Row.NCCL, needs=(Network,), uses=(*job.USES, Environment), tags=("net",))
def card_flaps_or_errs(facts: Facts, options: Options) -> Iterator[Finding]:
    """A network card loses its link or its packets

    What: the carrier of a card with an address changed many times since the interface was made, or its
        error counters are high for its traffic.
    Why: every flap of the card under NCCL's sockets or RoCE stalls a collective for seconds and, past the
        retries, ends the job as a timeout on all ranks.
    Fix: replace cable or transceiver, look at the switch port's counters, and drain the node meanwhile.
    Sources: Linux sysfs-class-net (carrier_changes) and statistics; Azure HPC health checks (link flaps).
    """
    network = facts[Network]
    cards = _cards(network)
    bad = False
    for card in cards:
        for text in _faults(card):
            bad = True
            yield warn(
                f"{card.name}: {text}",
                f"fewer than {table.CARRIER_CHANGES} carrier changes, and errors in no more than one packet "
                "of a million",
                subject=Subject(device=card.name),
                fix=Fix(
                    "Check cable, transceiver and switch port",
                    f"ip -s -s link show {card.name}",
                    owner=Owner.HARDWARE,
                ),
            )
    if not cards:
        yield skip("no physical network card with an address is visible", enable="run on the host itself")
    elif not bad:
        yield ok(f"{', '.join(c.name for c in cards)}: no flaps, no errors")


def _faults(card: Interface) -> Iterator[str]:
    if card.carrier_changes is not None and card.carrier_changes >= table.CARRIER_CHANGES:
        yield f"its carrier changed {card.carrier_changes} times"
    for way in ("rx", "tx"):
        errors = card.statistics.get(f"{way}_errors", 0)
        # Only the bytes are recorded for sure: a packet is at most an MTU long.
        carried = card.statistics.get(f"{way}_bytes")
        packets = None if carried is None else max(carried // max(card.mtu or table.STANDARD_MTU, 1), 1)
        if errors >= table.NIC_ERRORS and (packets is None or errors / packets > table.NIC_ERROR_SHARE):
            yield f"{way}_errors {errors}" + ("" if packets is None else f" in at least {packets} packets")


@check("NET013", Row.SLOW, needs=(Network,), uses=job.USES, tags=("net",))
def bond_is_degraded(facts: Facts, options: Options) -> Iterator[Finding]:
    """A bond runs on fewer cards than it has

    What: a member of a bonded interface is down or has no carrier.
    Why: the bond keeps working at a part of its bandwidth and without its redundancy, so that the node is
        a straggler in every collective over it, and the next lost link ends the job.
    Fix: repair the member's cable, transceiver or switch port.
    Sources: Linux bonding documentation, sysfs-class-net.
    """
    network = facts[Network]
    by_name = {i.name: i for i in network.interfaces}
    bonds = [i for i in network.interfaces if i.bond_members]
    bad = False
    for bond in bonds:
        down = [m for m in bond.bond_members if m in by_name and not running(by_name[m])]
        if down and running(bond):
            bad = True
            yield warn(
                f"{bond.name}: {', '.join(down)} of its members {', '.join(bond.bond_members)} "
                f"{'is' if len(down) == 1 else 'are'} down",
                f"all {len(bond.bond_members)} members up",
                subject=Subject(device=bond.name),
                fix=Fix(
                    f"Check cable and switch port of {', '.join(down)}",
                    f"cat /proc/net/bonding/{bond.name}",
                    owner=Owner.HARDWARE,
                ),
            )
    if not bad:
        yield ok(
            ", ".join(f"{b.name}: {len(b.bond_members)} members" for b in bonds) or "no bonded interface"
        )


@check("NET014", Row.NCCL, needs=(Network,), uses=job.USES, tags=("net",))
def mtu_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Cards of one speed have different MTUs

    What: among the Ethernet cards that are up and run at the same speed, one has another MTU.
    Why: where one end or one rail sends jumbo frames and the other takes 1500 bytes, small messages pass
        and large ones vanish: start-up works and the first big collective hangs. RoCE also negotiates the
        smaller size for the whole connection.
    Fix: set one MTU for all cards of the cluster network and on the switches.
    Sources: Linux sysfs-class-net (mtu), NCCL user guide (RoCE), NVIDIA RoCE configuration guide.
    """
    groups: dict[int, list[Interface]] = {}
    for card in facts[Network].interfaces:
        if card.type == ETHERNET and physical(card) and running(card) and card.speed and card.mtu:
            groups.setdefault(card.speed, []).append(card)
    bad = False
    for speed, cards in groups.items():
        sizes = sorted({c.mtu or 0 for c in cards})
        if len(sizes) < 2:
            continue
        bad = True
        text = f"cards of {speed} Mb/s have different MTUs: " + ", ".join(f"{c.name} {c.mtu}" for c in cards)
        odd = min(cards, key=lambda c: (sum(d.mtu == c.mtu for d in cards), c.mtu or 0))
        fix = Fix(
            f"Set one MTU on all of them, such as {sizes[-1]}, if the switches carry it",
            f"sudo ip link set dev {odd.name} mtu {sizes[-1]}",
            Risk.DISRUPTIVE,
            Owner.ADMIN,
        )
        if job.multi_node(facts, options):
            yield warn(text, "one MTU for the cluster's network", subject=Subject(device=odd.name), fix=fix)
        else:
            yield info(
                text, expected="one MTU for the cluster's network", subject=Subject(device=odd.name), fix=fix
            )
    if not bad:
        yield ok(
            ", ".join(
                f"{i.name} {i.mtu}" for i in facts[Network].interfaces if oddity(i) is None and running(i)
            )
            or "no card is up"
        )
