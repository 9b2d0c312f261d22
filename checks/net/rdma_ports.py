"""State and rate of the RDMA ports that NCCL would use."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import (
    ETHERNET,
    INFINIBAND,
    Port,
    card,
    explicit,
    groups,
    names,
    ports,
    wanted,
)
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rdma import Rdma

USES = (*job.USES, Environment)
NO_MANAGER = ("INIT", "ARMED")


def _waits(port: Port) -> bool:
    """Cabled, and waiting for a subnet manager: another fault than a dead link."""
    return port.port.link_layer == INFINIBAND and port.port.state in NO_MANAGER


@check("NET015", Row.NCCL, needs=(Rdma,), uses=USES, tags=("net", "rdma"))
def port_is_down(facts: Facts, options: Options) -> Iterator[Finding]:
    """A port of an RDMA adapter that NCCL would use is down

    What: a port is not ACTIVE while its equals (same link layer and model) are, or no port is active at
        all. Ports that NCCL_IB_HCA leaves out are not judged, nor is the unused second port of a card.
    Why: NCCL silently leaves out the port. This node then has fewer rails than the others, its GPUs share
        what is left, and every collective of the job runs at the pace of this node; with all ports down it
        falls back to TCP.
    Fix: check cable, transceiver and switch port; drain the node until it is ACTIVE and LinkUp.
    Sources: Linux sysfs-class-infiniband; NCCL user guide, env.rst (NCCL_IB_HCA); NCCL 2.30 net_ib/init.cc.
    """
    found, chosen = ports(facts[Rdma], settings(facts)), wanted(settings(facts))
    known = tuple(p for p in found if p.port.state is not None)
    if not known:
        yield from _nothing_known(found, chosen is not None)
        return
    single = job.multi_node(facts, options) is False
    active = tuple(p for p in known if p.active)
    if not active:
        if all(_waits(p) for p in known):
            yield ok("no port has a dead link")
            return
        say = warn if single else fail
        yield say(
            f"no port is ACTIVE: {', '.join(f'{p.name} {p.state}' for p in known)}",
            "ACTIVE/LinkUp",
            subject=Subject(device=names(known)),
            fix=_fix(known[0]),
        )
        return
    bad = False
    for alike in groups(known):
        dead = [p for p in alike if not p.active and not _waits(p)]
        if not dead:
            continue
        bad = True
        live = [p for p in alike if p.active]
        yield _down(dead, live, active, single, any(explicit(chosen, p) for p in dead))
    if not bad:
        yield ok(f"{len(active)} ports ACTIVE: {names(active)}")


def _nothing_known(found: tuple[Port, ...], selected: bool) -> Iterator[Finding]:
    if found:
        yield skip("the state of the ports could not be read", enable="mount /sys in the container")
    else:
        yield ok("NCCL_IB_HCA leaves no adapter" if selected else "no adapter that NCCL opens by verbs")


def _down(dead: list[Port], live: list[Port], active: tuple[Port, ...], single: bool, named: bool) -> Finding:
    said = f"{', '.join(f'{p.name} is {p.state}' for p in dead)}"
    layer = dead[0].port.link_layer or "unknown"
    subject = Subject(device=names(dead))
    beside = f"{len(live)} of {len(live) + len(dead)} equal {layer} ports active"
    expected = "ACTIVE/LinkUp like " + names(live or active)
    lost = any(p.port.counters.get("link_downed", 0) > 0 for p in dead)
    if named and not single:
        return fail(
            f"{said}, and NCCL_IB_HCA names it; {beside}", expected, subject=subject, fix=_fix(dead[0])
        )
    if not live and not lost:
        return info(f"{said}: none of its kind is cabled ({layer})", subject=subject)
    live_cards = {card(p.hca) for p in live} - {None}
    second = not lost and all(card(p.hca) in live_cards for p in dead)
    if layer == ETHERNET and (second or (not lost and len(live) == len(dead) == 1)):
        return info(f"{said}; {beside}: a port that was never cabled is no fault", subject=subject)
    if single or second or len(live) < len(dead):
        return warn(f"{said}; {beside}", expected, subject=subject, fix=_fix(dead[0]))
    return fail(f"{said}; {beside}", expected, subject=subject, fix=_fix(dead[0]))


def _fix(port: Port) -> Fix:
    return Fix(
        f"Check cable, transceiver and switch port of {port.name}; drain the node until it is ACTIVE",
        f"ibstat {port.hca.name}",
        owner=Owner.HARDWARE,
    )


@check("NET016", Row.SLOW, needs=(Rdma,), uses=USES, tags=("net", "rdma"))
def port_is_slower(facts: Facts, options: Options) -> Iterator[Finding]:
    """An RDMA port runs at a lower rate than its equals

    What: among active ports of one link layer and adapter model that NCCL would use, one has negotiated a
        lower rate. Adapters of another kind, such as a management port, are not compared.
    Why: NCCL spreads each collective over all rails; the slow one sets the pace of this node, and this node
        that of the job.
    Fix: reseat or replace cable and transceiver; look for a forced speed on the switch port.
    Sources: Linux sysfs-class-infiniband (rate); Azure HPC and gpud health checks.
    """
    found = tuple(p for p in ports(facts[Rdma], settings(facts)) if p.active and p.port.rate_gbps)
    single = job.multi_node(facts, options) is False
    bad = False
    for alike in groups(found):
        best = max(p.port.rate_gbps or 0 for p in alike)
        slow = [p for p in alike if (p.port.rate_gbps or 0) < best]
        if not slow:
            continue
        bad = True
        # Several slow ports of one model are often another fabric, such as the storage rails of a DGX.
        lone = len(alike) >= 4 and len(slow) == 1
        say = fail if lone and not single else warn
        yield say(
            f"{', '.join(f'{p.name} runs at {p.port.rate_gbps:g} Gb/s' for p in slow)}, "
            f"{len(alike) - len(slow)} equal ports at {best:g} Gb/s",
            f"{best:g} Gb/s",
            subject=Subject(device=names(slow)),
            fix=Fix(
                f"Reseat or replace the cable of {slow[0].name}; if it is of another fabric, leave it out "
                "with NCCL_IB_HCA",
                f"ibstat {slow[0].hca.name}",
                owner=Owner.HARDWARE,
            ),
        )
    if not bad:
        rates = sorted({p.port.rate_gbps or 0 for p in found}, reverse=True)
        yield ok(f"{len(found)} active ports at {', '.join(f'{r:g}' for r in rates) or 'no known'} Gb/s")


@check("NET017", Row.NCCL, needs=(Rdma,), uses=USES, tags=("net", "rdma"))
def no_subnet_manager(facts: Facts, options: Options) -> Iterator[Finding]:
    """An InfiniBand port has no subnet manager

    What: an InfiniBand port with a link is in state INIT or ARMED, or ACTIVE without the address (LID) of
        a subnet manager.
    Why: without a subnet manager no paths are set up: NCCL leaves the port out, or its connections time
        out in ibv_modify_qp.
    Fix: start the subnet manager (opensm or the one of the switch) and see that it sees this port.
    Sources: Linux sysfs-class-infiniband (sm_lid, state), opensm(8).
    """
    found = [p for p in ports(facts[Rdma], settings(facts)) if p.port.link_layer == INFINIBAND]
    waiting = [p for p in found if _waits(p)]
    orphaned = [p for p in found if p.active and p.port.sm_lid == 0]
    bad = waiting + orphaned
    if bad:
        say = warn if job.multi_node(facts, options) is False else fail
        yield say(
            f"{', '.join(f'{p.name} is {p.state}, SM LID {_lid(p)}' for p in bad)}",
            "ACTIVE, with the LID of a subnet manager",
            subject=Subject(device=names(bad)),
            fix=Fix("Start or repair the subnet manager", "sudo sminfo", Risk.NEEDS_ROOT, Owner.ADMIN),
        )
    else:
        yield ok(f"{len(found)} InfiniBand ports" if found else "no InfiniBand port")


def _lid(port: Port) -> str:
    return "unknown" if port.port.sm_lid is None else str(port.port.sm_lid)
