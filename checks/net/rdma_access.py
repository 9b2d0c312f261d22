"""Whether NCCL can open the RDMA adapters: names, library, device nodes, link layers."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import ETHERNET, INFINIBAND, Port, is_efa, names, ports, wanted
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import Settings, settings
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.rdma import Hca, Rdma
from fsdp_doctor.subjects.stack import Stack
from fsdp_doctor.tables.network import FEW_OF_ALL

VERBS_LIBRARY = "libibverbs.so.1"


@check("NET018", Row.NCCL, needs=(Environment,), uses=(*job.USES, Rdma), tags=("net", "rdma", "nccl"))
def named_adapter_is_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL_IB_HCA names adapters that this machine does not have

    What: NCCL_IB_HCA leaves NCCL no adapter at all, some of its names match none, or it leaves a quarter
        or less of the equal active ports.
    Why: NCCL opens what is left and, with nothing left, falls back to TCP without an error: the job runs
        at a tenth of its speed, or hangs where other nodes use more rails.
    Fix: correct the names, or unset the variable and let NCCL use every active port.
    Sources: NCCL user guide, env.rst (NCCL_IB_HCA); NCCL 2.30 sources (parseStringList, net_ib/init.cc).
    """
    variables = settings(facts)
    setting, chosen = variables.get("NCCL_IB_HCA"), wanted(variables)
    if setting is None or chosen is None or not chosen.entries:
        yield ok("NCCL_IB_HCA is not set")
        return
    subject = Subject(variable="NCCL_IB_HCA")
    said = f"NCCL_IB_HCA={setting.value}{setting.where}"
    single = job.multi_node(facts, options) is False
    fix = Fix("Correct the names, or unset NCCL_IB_HCA", "unset NCCL_IB_HCA")
    rdma = facts.fact(Rdma)
    if isinstance(rdma, Unknown):
        if rdma.absent and not chosen.exclude:
            say = info if single else warn
            text = f"{said}, and this machine has no RDMA adapter: NCCL uses TCP"
            yield say(text, expected="an adapter of that name", subject=subject, fix=fix)
        else:
            yield ok(f"{said}; the adapters of this machine are not known")
        return
    have = [h.name for h in rdma.value.hcas]
    left = ports(rdma.value, variables)
    absent = () if chosen.exclude else chosen.unmatched(have)
    marks = any(c in setting.value for c in "\"' \t")
    hint = "; quotes and blanks are part of a name to NCCL" if marks else ""
    if not left and any(not is_efa(h) for h in rdma.value.hcas):
        say = warn if single else fail
        yield say(
            f"{said} leaves none of the adapters {', '.join(have)}{hint}",
            "at least one adapter",
            subject=subject,
            fix=fix,
        )
    elif absent:
        yield warn(
            f"{said}: {', '.join(e.name for e in absent)} {'is' if len(absent) == 1 else 'are'} not among "
            f"{', '.join(have)}{hint}",
            "names of adapters of this machine",
            subject=subject,
            fix=fix,
        )
    elif not single and (unused := _left_out(rdma.value, left)):
        yield warn(
            f"{said} takes {names(left)} and leaves out {len(unused)} equal active ports ({names(unused)})",
            "every adapter of the GPUs' network",
            subject=subject,
            row=Row.SLOW,
            fix=Fix("Name every adapter, or unset NCCL_IB_HCA", "unset NCCL_IB_HCA"),
        )
    else:
        yield ok(f"{said} takes {names(left)}")


def _left_out(rdma: Rdma, left: tuple[Port, ...]) -> tuple[Port, ...]:
    """Active ports like the chosen ones that NCCL_IB_HCA leaves out, where it keeps a quarter or less."""
    taken = [p for p in left if p.active]
    kinds = {p.kind for p in taken}
    alike = [p for p in ports(rdma, Settings()) if p.active and p.kind in kinds]
    return tuple(p for p in alike if p not in taken) if len(taken) * FEW_OF_ALL <= len(alike) else ()


@check("NET019", Row.SLOW, needs=(Rdma,), uses=(*job.USES, Stack, Host), tags=("net", "rdma", "container"))
def adapters_cannot_be_opened(facts: Facts, options: Options) -> Iterator[Finding]:
    """RDMA adapters are visible, and this process cannot open them

    What: sysfs shows adapters, but the loader finds no libibverbs.so.1, or the device nodes
        /dev/infiniband/uverbs* are missing or not readable and writable. In a container sysfs shows the
        host's adapters whatever was passed in.
    Why: NCCL then says "NET/IB : No device found" at level INFO only and uses TCP sockets: the job runs,
        many times slower.
    Fix: install libibverbs (rdma-core) in the image and pass /dev/infiniband into the container.
    Sources: NCCL user guide (networking troubleshooting), rdma-core, Kubernetes RDMA device plug-in,
        nccl#2428.
    """
    hcas = facts[Rdma].hcas
    stack, host = facts.find(Stack), facts.find(Host)
    single = job.multi_node(facts, options) is False
    missing: list[str] = []
    fixes: list[str] = []
    if stack is not None and VERBS_LIBRARY in stack.dlopen and stack.dlopen[VERBS_LIBRARY] is None:
        missing.append(f"the loader finds no {VERBS_LIBRARY}")
        fixes.append("install rdma-core (Debian: libibverbs1, ibverbs-providers) in the image")
    if host is not None:
        nodes = {h.name: f"/dev/infiniband/{h.verbs}" for h in hcas if h.verbs}
        gone = [h.name for h in hcas if nodes.get(h.name) not in host.device_nodes]
        closed = [n for h, n in nodes.items() if n in host.unreadable_nodes and h not in gone]
        if gone:
            what = "any adapter" if len(gone) == len(hcas) else ", ".join(gone)
            missing.append(f"there is no /dev/infiniband/uverbs node for {what}")
            fixes.append(
                "pass /dev/infiniband into the container (--device=/dev/infiniband), or load ib_uverbs"
            )
        if closed:
            missing.append(f"{', '.join(closed)} cannot be opened by uid {host.uid}")
            fixes.append("give the user read and write access to /dev/infiniband/uverbs*")
    if not missing:
        yield ok(f"{len(hcas)} RDMA adapters with library and device nodes")
        return
    say = warn if single else fail
    yield say(
        f"{len(hcas)} RDMA adapters in sysfs ({_short(hcas)}), but {'; '.join(missing)}",
        f"{VERBS_LIBRARY} and an openable /dev/infiniband/uverbs* per adapter",
        subject=Subject(device=", ".join(h.name for h in hcas[:8])),
        fix=Fix(_sentence(fixes), None, Risk.NEEDS_ROOT, Owner.ADMIN),
    )


def _short(hcas: tuple[Hca, ...]) -> str:
    return ", ".join(h.name for h in hcas[:8]) + (", …" if len(hcas) > 8 else "")


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


@check("NET020", Row.SLOW, needs=(Rdma,), uses=(*job.USES, Environment), tags=("net", "rdma"))
def link_layers_are_mixed(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL would use InfiniBand and Ethernet adapters together

    What: active ports of both link layers are left to NCCL, because NCCL_IB_HCA does not choose.
    Why: the Ethernet ones are mostly management or storage cards that happen to speak RoCE: slower, on
        another network, perhaps unreachable from the other nodes. A connection that NCCL puts on them is
        slow, or times out.
    Fix: name the adapters of the compute fabric in NCCL_IB_HCA, exactly (=mlx5_0,mlx5_1,…).
    Sources: NCCL user guide, env.rst (NCCL_IB_HCA); ml-engineering (network debugging).
    """
    active = [p for p in ports(facts[Rdma], settings(facts)) if p.active]
    fabric = [p for p in active if p.port.link_layer == INFINIBAND]
    other = [p for p in active if p.port.link_layer == ETHERNET]
    if not fabric or not other:
        layers = sorted({p.port.link_layer or "unknown" for p in active})
        yield ok(f"{len(active)} active ports, link layer {', '.join(layers) or 'unknown'}")
        return
    said = f"InfiniBand {names(fabric)} and Ethernet {names(other)} are both left to NCCL"
    fix = Fix(
        "Name the adapters of the compute fabric",
        "export NCCL_IB_HCA==" + ",".join(dict.fromkeys(p.hca.name for p in fabric)),
    )
    subject = Subject(device=names(other), variable="NCCL_IB_HCA")
    if job.multi_node(facts, options):
        yield warn(said, "adapters of one fabric", subject=subject, fix=fix)
    else:
        yield info(said, expected="adapters of one fabric", subject=subject, fix=fix)
