"""NCCL's network plug-ins: the one EFA needs, and those that variables name."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import ACTIVE, is_efa
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Settings, settings
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.stack import Stack
from fsdp_doctor.tables.network import INTERNAL_NETS, NET_PLUGIN, NET_PLUGIN_OFI

NONE = "none"


def _candidates(value: str) -> tuple[str, ...]:
    """Files that NCCL tries for a value of NCCL_NET_PLUGIN: the name itself, then libnccl-net-NAME.so."""
    whole = "/" in value or (value.startswith("lib") and value.endswith(".so"))
    return (value,) if whole else (value, f"libnccl-net-{value}.so")


def _found(stack: Stack, variables: Settings) -> str | None:
    """The plug-in that the loader has, by what was asked of it."""
    value = variables.value("NCCL_NET_PLUGIN")
    if value:
        if value.lower() == NONE:
            return None
        if value.startswith("/"):
            return value
        hit = next((stack.dlopen[c] for c in _candidates(value) if stack.dlopen.get(c)), None)
        return hit or (
            f"NCCL_NET_PLUGIN={value}" if not any(c in stack.dlopen for c in _candidates(value)) else None
        )
    return stack.dlopen.get(NET_PLUGIN)


@check("NET026", Row.SLOW, needs=(Rdma, Stack), uses=(*job.USES, Environment), tags=("net", "rdma", "efa"))
def efa_without_plugin(facts: Facts, options: Options) -> Iterator[Finding]:
    """EFA adapters without the plug-in that NCCL needs for them

    What: the machine has EFA adapters, and the loader finds no libnccl-net.so (aws-ofi-nccl); or
        FI_PROVIDER or NCCL_NET_PLUGIN keep it from being used.
    Why: NCCL's own verbs code cannot use EFA: without the plug-in it falls back to TCP over the ENA card,
        at a few per cent of the bandwidth, without an error.
    Fix: install aws-ofi-nccl, put its folder into LD_LIBRARY_PATH, and look for "NET/OFI" in the output of
        NCCL_DEBUG=INFO.
    Sources: aws-ofi-nccl documentation, AWS EFA user guide.
    """
    efa = [h.name for h in facts[Rdma].hcas if is_efa(h)]
    if not efa:
        yield ok("no EFA adapter")
        return
    stack, variables = facts[Stack], settings(facts)
    single = job.multi_node(facts, options) is False
    say = warn if single else fail
    subject = Subject(device=", ".join(efa))
    refused = (variables.value("NCCL_NET_PLUGIN") or "").lower() == NONE
    plugin = _found(stack, variables) or stack.dlopen.get(NET_PLUGIN_OFI)
    if refused:
        yield say(
            f"NCCL_NET_PLUGIN=none on a machine with the EFA adapters {', '.join(efa)}",
            "aws-ofi-nccl loaded",
            subject=Subject(device=subject.device, variable="NCCL_NET_PLUGIN"),
            fix=Fix("Unset it", "unset NCCL_NET_PLUGIN"),
        )
    elif plugin is None and NET_PLUGIN not in stack.dlopen:
        yield skip(f"whether the loader finds {NET_PLUGIN} was not asked", subject=subject)
    elif plugin is None:
        yield say(
            f"EFA adapters {', '.join(efa)}, and the loader finds no {NET_PLUGIN}",
            f"{NET_PLUGIN} of aws-ofi-nccl",
            subject=subject,
            fix=Fix(
                "Install aws-ofi-nccl and put it on the loader's path",
                "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH",
            ),
        )
    elif variables.value("FI_PROVIDER") not in (None, "", "efa"):
        yield warn(
            f"FI_PROVIDER={variables.value('FI_PROVIDER')} on a machine with EFA adapters",
            "efa, or unset",
            subject=Subject(device=subject.device, variable="FI_PROVIDER"),
            fix=Fix("Use the EFA provider", "export FI_PROVIDER=efa"),
            why="libfabric then takes that provider instead of the EFA adapters: over tcp at a few per cent "
            "of their bandwidth, or the plug-in finds nothing and NCCL falls back to its own sockets.",
        )
    else:
        yield ok(f"{len(efa)} EFA adapters with {plugin}")


@check("NET027", Row.NCCL, needs=(Environment,), uses=(*job.USES, Rdma, Stack), tags=("net", "nccl"))
def network_cannot_be_had(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL_NET or NCCL_NET_PLUGIN asks for a network that is not there

    What: NCCL_NET names a network (IB, Socket, or a plug-in's) for which this machine has no adapter or
        plug-in, or the loader does not find the library that NCCL_NET_PLUGIN names.
    Why: with NCCL_NET every communicator fails at once ("Failed to initialize any NET plugin"); a
        plug-in that is not found is passed over in silence, and the job runs on slower transport.
    Fix: unset the variable, or install the plug-in and put it on the loader's path, on every node alike.
    Sources: NCCL user guide, env.rst (NCCL_NET, NCCL_NET_PLUGIN); NCCL 2.30 sources (plugin_open.cc).
    """
    variables = settings(facts)
    net, plugin = variables.get("NCCL_NET"), variables.get("NCCL_NET_PLUGIN")
    stack, rdma = facts.find(Stack), facts.fact(Rdma)
    bad = False
    if plugin is not None and plugin.value and plugin.value.lower() != NONE and stack is not None:
        tried = _candidates(plugin.value)
        asked = [c for c in tried if c in stack.dlopen]
        if asked and not any(stack.dlopen[c] for c in asked):
            bad = True
            yield warn(
                f"NCCL_NET_PLUGIN={plugin.value}{plugin.where}: the loader finds none of {', '.join(asked)}",
                "a library that the loader finds",
                subject=Subject(variable="NCCL_NET_PLUGIN"),
                fix=Fix(
                    "Put the plug-in's folder into LD_LIBRARY_PATH, or unset it", "unset NCCL_NET_PLUGIN"
                ),
            )
    if net is not None and net.value:
        name = net.value.strip().lower()
        reason = None
        if name == "ib":
            reason = _no_verbs(facts.find(Rdma), isinstance(rdma, Unknown) and rdma.absent)
        elif name not in INTERNAL_NETS and _has_no_plugin(stack, plugin.value if plugin else None):
            reason = f"it is none of NCCL's own, and the loader finds no {NET_PLUGIN}"
        if reason is not None:
            bad = True
            yield fail(
                f"NCCL_NET={net.value}{net.where}, but {reason}",
                "a network that this machine has",
                subject=Subject(variable="NCCL_NET"),
                fix=Fix("Unset it and let NCCL choose", "unset NCCL_NET"),
            )
        elif name not in INTERNAL_NETS and plugin is not None and not _asked(stack, plugin.value):
            bad = True
            yield skip(
                f"NCCL_NET={net.value} comes from a plug-in, and whether the loader finds "
                f"{' or '.join(_candidates(plugin.value))} was not asked",
                enable="run the check on the machine itself",
            )
    if not bad:
        named = [f"{s.name}={s.value}" for s in (net, plugin) if s is not None]
        yield ok(", ".join(named) or "NCCL chooses the network")


def _asked(stack: Stack | None, plugin: str) -> bool:
    return stack is not None and any(c in stack.dlopen for c in _candidates(plugin))


def _has_no_plugin(stack: Stack | None, plugin: str | None) -> bool:
    """Whether the loader was asked for the plug-in, by its default name if none is given, and found none."""
    if stack is None:
        return False
    if plugin is not None and plugin.lower() == NONE:
        return True
    asked = [c for c in (_candidates(plugin) if plugin else (NET_PLUGIN,)) if c in stack.dlopen]
    return bool(asked) and not any(stack.dlopen[c] for c in asked)


def _no_verbs(rdma: Rdma | None, absent: bool) -> str | None:
    if rdma is None:
        return "this machine has no RDMA adapter" if absent else None
    usable = [h for h in rdma.hcas if not is_efa(h)]
    if not usable:
        return "EFA needs a plug-in, and there is no other RDMA adapter"
    states = [p.state for h in usable for p in h.ports if p.state is not None]
    return "no RDMA port is active" if states and ACTIVE not in states else None


@check("NET028", None, needs=(Environment,), uses=(*job.USES, Rdma), tags=("net", "nccl"))
def rails_are_crossed(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL_CROSS_NIC is set by hand

    What: NCCL_CROSS_NIC says whether rings and trees may leave a node by one adapter and enter the next by
        another; NCCL's own choice is 2 (only where it is faster).
    Why: 0 suits networks where every rail has its own switches, 1 suits networks where all adapters meet at
        one switch; the wrong one sends traffic over slow links between rails.
    Fix: leave it unset unless the network's designer says otherwise; use one value on all nodes.
    Sources: NCCL user guide, env.rst (NCCL_CROSS_NIC).
    """
    setting = settings(facts).get("NCCL_CROSS_NIC")
    if setting is None or setting.number in (2, None):
        yield ok("NCCL_CROSS_NIC is NCCL's own choice")
        return
    yield info(
        f"NCCL_CROSS_NIC={setting.value}{setting.where}: "
        + ("rails are kept apart" if setting.number == 0 else "rings and trees may change rails"),
        expected="a network built that way",
        subject=Subject(variable="NCCL_CROSS_NIC"),
    )
