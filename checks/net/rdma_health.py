"""Firmware and error counters of RDMA adapters."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.net._adapters import Port, is_efa, names, ports
from fsdp_doctor.engine import job
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.engine.variables import settings
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rdma import Hca, Rdma
from fsdp_doctor.tables.network import PORT_COUNTERS


@check("NET024", Row.SLOW, needs=(Rdma,), tags=("net", "rdma"))
def firmware_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """Equal RDMA adapters run different firmware

    What: adapters of one model and board have different firmware versions.
    Why: congestion control, adaptive routing and known hangs differ between versions, so that one rail
        behaves unlike the others in a way that no counter explains.
    Fix: bring all of them to one version in a maintenance window.
    Sources: Linux sysfs-class-infiniband (fw_ver); imbue and gcm cluster health checks.
    """
    kinds: dict[tuple[str | None, str | None], list[Hca]] = {}
    for hca in facts[Rdma].hcas:
        if hca.firmware and not is_efa(hca):
            kinds.setdefault((hca.hca_type, hca.board_id), []).append(hca)
    bad = False
    for (model, _), hcas in kinds.items():
        by_version: dict[str, list[str]] = {}
        for hca in hcas:
            by_version.setdefault(hca.firmware or "", []).append(hca.name)
        if len(by_version) < 2:
            continue
        bad = True
        rare = min(by_version.values(), key=len)
        yield warn(
            f"{model or 'adapters'}: "
            + ", ".join(f"firmware {v} on {', '.join(n)}" for v, n in by_version.items()),
            "one version on all of one model",
            subject=Subject(device=", ".join(rare)),
            fix=Fix(
                "Update the firmware of the odd ones",
                "sudo mlxfwmanager --query",
                Risk.DISRUPTIVE,
                Owner.ADMIN,
            ),
        )
    if not bad:
        yield ok(
            ", ".join(f"{model or '?'} {hcas[0].firmware}" for (model, _), hcas in kinds.items())
            or "no firmware version is shown"
        )


@check("NET025", Row.NCCL, needs=(Rdma,), uses=(*job.USES, Environment), tags=("net", "rdma"))
def counters_are_high(facts: Facts, options: Options) -> Iterator[Finding]:
    """An RDMA port has many errors since its driver was loaded

    What: counters of lost links, damaged symbols, retransmissions or timeouts of a port that NCCL would use
        are above what a healthy link gathers. They count since the driver was loaded, so old repairs may
        stand in them.
    Why: each lost link or exhausted retry under a collective is a NCCL timeout on all ranks ("status=12"),
        and steady retransmission is a slow rail.
    Fix: note the counters, run for an hour, compare; replace cable or transceiver where they still grow.
    Sources: Linux sysfs-class-infiniband (counters, hw_counters), NCCL user guide (networking).
    """
    found = ports(facts[Rdma], settings(facts))
    if not any(p.port.counters for p in found):
        yield skip("no counter of the ports could be read", enable="mount /sys in the container")
        return
    high: dict[str, list[Port]] = {}
    some: list[str] = []
    for port in found:
        for name, (limit, _) in PORT_COUNTERS.items():
            count = port.port.counters.get(name, 0)
            if count >= limit:
                high.setdefault(name, []).append(port)
            elif name == "link_downed" and count:
                some.append(f"{port.name} link_downed {count}")
    for name, which in high.items():
        limit, meaning = PORT_COUNTERS[name]
        counts = ", ".join(f"{p.name} {name} {p.port.counters[name]}" for p in which)
        yield warn(
            f"{counts}: {meaning}",
            f"{name} below {limit}, and not growing",
            subject=Subject(device=names(which)),
            fix=Fix(
                f"Watch the counter under load; replace the cable of {which[0].name} if it grows",
                f"grep . /sys/class/infiniband/{which[0].hca.name}/ports/{which[0].port.number}/counters/*",
                owner=Owner.HARDWARE,
            ),
            evidence=tuple(
                Evidence(
                    f"/sys/class/infiniband/{p.hca.name}/ports/{p.port.number}",
                    f"{name} {p.port.counters[name]}",
                )
                for p in which
            ),
        )
    if high:
        return
    if some:
        yield info(f"links were lost and came back since the driver was loaded: {', '.join(some)}")
    else:
        yield ok(f"{len(found)} ports without errors")
