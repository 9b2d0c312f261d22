"""RoCE: which GID the connections use."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import ETHERNET, names, ports
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import nccl_version, settings
from fsdp_doctor.findings import Finding, Fix, Owner, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.stack import Torch
from fsdp_doctor.tables.nccl_variables import ROCE_GID_SELECTED

V2 = "RoCE v2"
VARIABLE = "NCCL_IB_GID_INDEX"


@check("NET021", Row.NCCL, needs=(Rdma,), uses=(*job.USES, Environment, Torch), tags=("net", "rdma", "nccl"))
def roce_gid_is_wrong(facts: Facts, options: Options) -> Iterator[Finding]:
    """A RoCE port has no usable GID, or NCCL_IB_GID_INDEX picks a wrong one

    What: an active Ethernet port that NCCL would use has no RoCE v2 GID; or NCCL_IB_GID_INDEX points at an
        entry that is empty or of RoCE v1; or it is set although NCCL chooses by itself (2.21 and newer).
    Why: RoCE v1 does not cross a router and an empty GID connects to nothing: ibv_modify_qp fails or the
        retries run out ("status=12"), after minutes, on all ranks. The index of a GID changes with every
        address that is added, so that a fixed index breaks on some node.
    Fix: unset NCCL_IB_GID_INDEX on NCCL 2.21 and newer; give the interface an address where a GID is missing.
    Sources: NCCL user guide, env.rst (NCCL_IB_GID_INDEX, NCCL_IB_ROCE_VERSION_NUM); NCCL 2.30 net_ib.
    """
    variables = settings(facts)
    roce = [p for p in ports(facts[Rdma], variables) if p.active and p.port.link_layer == ETHERNET]
    if not roce:
        yield ok("no active RoCE port")
        return
    say = warn if job.multi_node(facts, options) is False else fail
    version = nccl_version(facts)
    chooses = version is None or version >= ROCE_GID_SELECTED
    setting = variables.get(VARIABLE)
    index = setting.number if setting is not None else None
    if setting is not None and index is not None and index >= 0:
        known = [p for p in roce if p.port.gid_types]
        empty = [p for p in known if index not in p.port.gid_types]
        old = [p for p in known if index in p.port.gid_types and p.port.gid_types[index] != V2]
        said = f"{VARIABLE}={setting.value}{setting.where}"
        subject = Subject(variable=VARIABLE, device=names(empty or old) or None)
        fix = (
            Fix(f"Unset {VARIABLE}: NCCL chooses the RoCE v2 GID itself", f"unset {VARIABLE}")
            if chooses
            else Fix(f"Point {VARIABLE} at a RoCE v2 GID", "show_gids")
        )
        if empty:
            yield say(
                f"{said}, and {names(empty)} has no GID there",
                "the index of a RoCE v2 GID",
                subject=subject,
                fix=fix,
            )
            return
        if old:
            kinds = ", ".join(sorted({p.port.gid_types[index] for p in old}))
            yield say(f"{said}, which on {names(old)} is {kinds}", "a RoCE v2 GID", subject=subject, fix=fix)
            return
        if chooses and version is not None:
            yield warn(
                f"{said}, with NCCL {'.'.join(map(str, version))}",
                "unset: NCCL 2.21 and newer choose the GID, and a fixed index breaks when addresses change",
                subject=subject,
                fix=fix,
            )
            return
    bare = [p for p in roce if p.port.gid_types and V2 not in p.port.gid_types.values()]
    if bare:
        kinds = ", ".join(sorted({t for p in bare for t in p.port.gid_types.values()}))
        yield say(
            f"{names(bare)} has no RoCE v2 GID, only {kinds}",
            "a RoCE v2 GID with the address of its interface",
            subject=Subject(device=names(bare)),
            fix=Fix(
                f"Give {bare[0].port.netdev or 'the interface'} an IP address; enable RoCE v2",
                "show_gids",
                owner=Owner.ADMIN,
            ),
        )
    elif version is not None and not chooses and setting is None:
        yield info(
            f"NCCL {'.'.join(map(str, version))} uses GID 0 on RoCE unless {VARIABLE} names a RoCE v2 one",
            subject=Subject(variable=VARIABLE),
        )
    else:
        yield ok(f"RoCE v2 on {names(roce)}")
