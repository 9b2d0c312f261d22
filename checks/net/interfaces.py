"""Which interfaces NCCL and gloo are told to use, and which they would take."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine import job
from fsdp_doctor.engine.interface_kinds import oddity
from fsdp_doctor.engine.interfaces import choice, has_address, label, predict, running, selector
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.network import Interface, Network
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.tables.nccl_variables import SOCKET_FAMILIES
from fsdp_doctor.tables.network import HOST_ONLY_PREFIXES

IFNAME = "NCCL_SOCKET_IFNAME"


def _present(network: Network) -> str:
    return ", ".join(i.name for i in network.interfaces) or "none"


def _candidates(network: Network) -> str:
    good = [i.name for i in network.interfaces if running(i) and has_address(i, None) and oddity(i) is None]
    return good[0] if good else "NAME"


def _state(interface: Interface) -> str:
    if not running(interface):
        return "is down" if interface.state == "down" else "has no carrier"
    return "has no address"


@check("NET007", Row.NCCL, needs=(Network, Environment), uses=job.USES, tags=("net", "nccl"))
def nccl_interface_is_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME leaves NCCL no interface

    What: no interface that is up and has an address matches NCCL_SOCKET_IFNAME: the name does not exist
        here, is misspelt or quoted, or the interface is down or without an address.
    Why: NCCL's bootstrap ends with "no socket interface found" on every rank of this node, even when the
        data itself would go over InfiniBand or NVLink.
    Fix: name an interface of this machine, or unset the variable and let NCCL choose.
    Sources: NCCL user guide, env.rst (NCCL_SOCKET_IFNAME); NCCL 2.30 sources (ncclFindInterfaces).
    """
    network, setting = facts[Network], settings(facts).get(IFNAME)
    if setting is None or len(setting.value) < 2:
        yield ok(f"{IFNAME} is not set; this machine has {_present(network)}")
        return
    if not network.interfaces:
        yield skip("the interfaces of the machine are not known", enable="mount /sys in the container")
        return
    chosen = selector(setting.value)
    subject = Subject(variable=IFNAME, device=chosen.entries[0].name if chosen.entries else None)
    usable = choice(network, settings(facts)).interfaces
    fix = Fix(
        f"Name an interface that this machine has, or unset {IFNAME}",
        f"export {IFNAME}=={_candidates(network)}",
    )
    said = f"{IFNAME}={setting.value}{setting.where}"
    absent = chosen.unmatched(i.name for i in network.interfaces)
    if usable:
        if absent and not chosen.exclude:
            yield info(
                f"{said}: nothing here is called {', '.join(e.name for e in absent)}; "
                f"NCCL takes {', '.join(label(i) for i in usable)}",
                subject=subject,
            )
        else:
            yield ok(f"{said} takes {', '.join(label(i) for i in usable)}")
        return
    marks = any(c in setting.value for c in "\"' \t")
    hint = "; quotes and blanks are part of the name to NCCL" if marks else ""
    named = [i for i in network.interfaces if chosen.takes(i.name)]
    if not named:
        yield fail(
            f"{said}, and no interface matches{hint}: this machine has {_present(network)}",
            "an interface that exists here",
            subject=subject,
            fix=fix,
        )
        return
    yield fail(
        f"{said}, and {', '.join(f'{i.name} {_state(i)}' for i in named)}",
        "an interface that is up and has an address",
        subject=Subject(variable=IFNAME, device=named[0].name),
        fix=fix,
    )


@check("NET008", Row.START, needs=(Network, Environment), uses=job.USES, tags=("net",))
def gloo_interface_is_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME or TP_SOCKET_IFNAME names an interface that cannot be used

    What: a name in GLOO_SOCKET_IFNAME (whole names, comma-separated) or TP_SOCKET_IFNAME is no interface
        of this machine, or is one that is down or has no address.
    Why: making a gloo group fails ("Unable to find address for …"). FSDP jobs make one for checkpoints
        (DCP), for object collectives and for CPU offload.
    Fix: name an interface of this machine, or unset the variable.
    Sources: PyTorch distributed documentation (GLOO_SOCKET_IFNAME), torch ProcessGroupGloo.
    """
    network, variables = facts[Network], settings(facts)
    by_name = {i.name: i for i in network.interfaces}
    judged = False
    for variable, say in (("GLOO_SOCKET_IFNAME", fail), ("TP_SOCKET_IFNAME", warn)):
        setting = variables.get(variable)
        if setting is None or not setting.value or not by_name:
            continue
        for name in setting.value.split(","):
            interface = by_name.get(name)
            usable = interface is not None and running(interface) and has_address(interface, None)
            judged = True
            if usable and interface is not None:
                odd = oddity(interface)
                if odd == "the loopback" and job.multi_node(facts, options):
                    yield fail(
                        f"{variable}={setting.value}{setting.where}: {name} is the loopback, in a job of "
                        "several nodes",
                        "an interface that reaches the other nodes",
                        subject=Subject(variable=variable, device=name),
                        fix=Fix(f"Name the interface of the cluster's network in {variable}"),
                    )
                continue
            state = "which this machine does not have" if interface is None else f"which {_state(interface)}"
            yield say(
                f"{variable}={setting.value}{setting.where} names {name!r}, {state}: it has "
                f"{_present(network)}",
                "an interface that is up and has an address",
                subject=Subject(variable=variable, device=name),
                fix=Fix(
                    f"Name an interface of this machine, or unset {variable}",
                    f"export {variable}={_candidates(network)}",
                ),
            )
    if not judged:
        yield ok("neither GLOO_SOCKET_IFNAME nor TP_SOCKET_IFNAME is set")


@check("NET009", Row.NCCL, needs=(Network,), uses=(*job.USES, Environment, Rdma), tags=("net", "nccl"))
def nccl_takes_an_odd_interface(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL would meet the other nodes over a loopback, container, virtual machine or VPN interface

    What: the interface that NCCL would take first (by NCCL_SOCKET_IFNAME or by its own order) is lo, a
        bridge of docker or libvirt, or a tunnel. The prediction follows NCCL's rule over this machine's
        interfaces. Between nodes lo and such a bridge fail, a tunnel is a warning.
    Why: the subnet of docker0 is the same on every machine, so that the other nodes connect to
        themselves: the bootstrap hangs or is refused. Over a tunnel it is slow, and without RDMA all data
        takes that way.
    Fix: name the network card with an exact NCCL_SOCKET_IFNAME (=NAME), the same network on every node.
    Sources: NCCL user guide, env.rst (NCCL_SOCKET_IFNAME); NCCL 2.30 sources (ncclFindInterfaces).
    """
    network, variables = facts[Network], settings(facts)
    found = choice(network, variables)
    first = found.first
    multi = job.multi_node(facts, options)
    if first is None:
        if variables.get(IFNAME) is not None and len(variables.value(IFNAME) or "") > 1:
            yield ok(f"{IFNAME} decides")
        elif variables.value("NCCL_SOCKET_FAMILY") in SOCKET_FAMILIES and predict(network.interfaces).first:
            yield ok("NCCL_SOCKET_FAMILY decides")
        elif not any(has_address(i, None) for i in network.interfaces):
            yield skip("the addresses of the interfaces are not known", enable="record on the machine itself")
        else:
            yield fail(
                f"no interface is up with an address: {_present(network)}",
                "at least one, for NCCL's bootstrap",
                fix=Fix("Bring an interface up; a single node needs lo", "ip -br address"),
            )
        return
    good = [i for i in network.interfaces if running(i) and has_address(i, None) and oddity(i) is None]
    said = f"NCCL's bootstrap would use {label(first)}, because {found.rule}"
    fix = Fix("Name the cluster's network card exactly", f"export {IFNAME}=={_candidates(network)}")
    subject = Subject(device=first.name, variable=IFNAME if variables.get(IFNAME) else None)
    rest = [i for i in found.interfaces[1:] if oddity(i) is not None]
    kind = oddity(first)
    alone = kind is not None and (kind == "the loopback" or first.name.startswith(HOST_ONLY_PREFIXES))
    if kind is not None and multi and (alone or not good):
        yield fail(f"{said}: {kind}", "a card on the network of the job", subject=subject, fix=fix)
    elif kind is not None and multi:
        yield warn(
            f"{said}: {kind}, while {', '.join(label(i) for i in good)} is up",
            "a card on the network of the job",
            subject=subject,
            fix=fix,
        )
    elif kind is not None and kind != "the loopback" and multi is None and good:
        yield info(f"{said}: {kind}; other nodes hardly reach it", subject=subject, fix=fix)
    elif multi and rest and facts.find(Rdma) is None:
        yield warn(
            f"without RDMA NCCL would also send data over {', '.join(label(i) for i in rest)} "
            f"({', '.join(sorted({oddity(i) or '' for i in rest}))})",
            "only cards on the network of the job",
            subject=Subject(device=rest[0].name),
            fix=fix,
        )
    else:
        yield ok(
            f"{said}"
            + (f" (then {', '.join(i.name for i in found.interfaces[1:])})" if found.interfaces[1:] else "")
        )


@check("NET010", Row.NCCL, needs=(Network, Environment), uses=job.USES, tags=("net", "nccl"))
def address_family_does_not_fit(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL_SOCKET_FAMILY does not fit the addresses of this machine

    What: NCCL_SOCKET_FAMILY is neither AF_INET nor AF_INET6, or asks for a family of which no interface
        that is up has an address.
    Why: NCCL ignores another word without a message; with a family that no interface has, its bootstrap
        finds no interface.
    Fix: use AF_INET or AF_INET6 as the network has it, or unset the variable.
    Sources: NCCL user guide, env.rst (NCCL_SOCKET_FAMILY); NCCL 2.30 sources (ncclEnvSocketFamily).
    """
    setting = settings(facts).get("NCCL_SOCKET_FAMILY")
    if setting is None or not setting.value:
        yield ok("NCCL_SOCKET_FAMILY is not set")
        return
    subject = Subject(variable=setting.name)
    if setting.value not in SOCKET_FAMILIES:
        yield warn(
            f"NCCL_SOCKET_FAMILY={setting.value}{setting.where}, which NCCL does not know and ignores",
            "AF_INET or AF_INET6",
            subject=subject,
            fix=Fix("Set AF_INET or AF_INET6, or unset it", "unset NCCL_SOCKET_FAMILY"),
        )
        return
    known = [i for i in facts[Network].interfaces if has_address(i, None)]
    if known and not any(running(i) and has_address(i, setting.value) for i in known):
        yield fail(
            f"NCCL_SOCKET_FAMILY={setting.value}{setting.where}, and no interface that is up has such an "
            f"address: {', '.join(label(i) for i in known)}",
            "the family of the job's network",
            subject=subject,
            fix=Fix("Unset NCCL_SOCKET_FAMILY, or give the card such an address", "unset NCCL_SOCKET_FAMILY"),
        )
    else:
        yield ok(f"NCCL_SOCKET_FAMILY={setting.value}")
