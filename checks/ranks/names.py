"""What names lead to on the hosts of a job: each host's own, and that of rank 0."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import knows_nodes, machines, on_machine, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


@check("RNK052", Row.NCCL, needs=(RankSet,), tags=("ranks", "net", "gloo"))
def gloo_binds_loopback(facts: Facts, options: Options) -> Iterator[Finding]:
    """Gloo would listen on the loopback of a host in a job of several hosts.

    What: without GLOO_SOCKET_IFNAME gloo listens on the address that the host's own name resolves to, and
    on the loopback where that is no address of the host. Reported here where the host itself could not
    know that the job has others.
    Why: gloo groups carry checkpoints (DCP), object collectives and CPU offload; ranks of other hosts then
    connect to themselves: "connection refused", or a hang in the first save.
    Fix: give the host name its real address, or name the interface in GLOO_SOCKET_IFNAME.
    Sources: PyTorch, ProcessGroupGloo (createDefaultDevice); PyTorch distributed documentation (choosing
    the network interface).
    """
    ranks = facts[RankSet].ranks
    firsts = machines(ranks)
    if len(firsts) < 2:
        yield ok("all ranks are on one host")
        return
    asked = [r for r in firsts if r.environment.get("GLOO_SOCKET_IFNAME") or r.host_addresses is not None]
    if not asked:
        yield skip("no host says what its own name resolves to")
        return
    for r in asked:
        why = None if r.environment.get("GLOO_SOCKET_IFNAME") else _why_loopback(r)
        if why is not None:
            where = subject(on_machine(ranks, r))
            yield fail(
                f"{why}: gloo would listen on the loopback of {r.host or f'rank {r.rank}'}",
                "a name that resolves to the host's address on the network of the job",
                subject=where,
                fix=Fix(
                    f"Map {r.host or 'the host name'} to its real address in /etc/hosts, or set "
                    "GLOO_SOCKET_IFNAME to the card",
                    None,
                    Risk.NEEDS_ROOT,
                    Owner.ADMIN,
                ),
            )


def _why_loopback(rank: RankDigest) -> str | None:
    found = rank.host_addresses or ()
    own = {a.partition("/")[0] for i in rank.interfaces for a in (*i.ipv4, *i.ipv6)}
    if not found:
        return f"{rank.host} does not resolve on the host itself"
    if _loopback(found[0]):
        return None if knows_nodes(rank) else f"{rank.host} resolves to {', '.join(found)} on the host itself"
    if own and not own.intersection(a.partition("%")[0] for a in found):
        return f"{rank.host} resolves to {', '.join(found)}, which is no address of the host"
    return None


@check("RNK053", Row.START, needs=(RankSet,), tags=("ranks", "net"))
def master_resolves_differently(facts: Facts, options: Options) -> Iterator[Finding]:
    """MASTER_ADDR leads to different places on different hosts.

    What: compares what MASTER_ADDR resolves to on the hosts; rank 0's own may have a loopback for it.
    Why: a host on which the name is a loopback or another machine waits for a store that is not there, and
    its ranks never arrive.
    Fix: set MASTER_ADDR to an address, or make DNS and /etc/hosts agree.
    Sources: torch.distributed, environment variable initialisation; getaddrinfo(3).
    """
    ranks = facts[RankSet].ranks
    firsts = [r for r in machines(ranks) if _master(r)]
    if len(firsts) < 2:
        if len(machines(ranks)) < 2:
            yield ok("all ranks are on one host")
        else:
            yield skip("fewer than two hosts say what MASTER_ADDR resolves to")
        return
    home = next((r for r in ranks if r.rank == 0), None)
    away = [r for r in firsts if home is None or (r.host, r.boot_id) != (home.host, home.boot_id)]
    astray = [r for r in away if all(_loopback(a) for a in _master(r)) and not knows_nodes(r)]
    for r in astray:
        yield fail(
            f"MASTER_ADDR {r.master_addr} resolves to {', '.join(_master(r))} on {r.host}, without rank 0",
            "the address of rank 0's host on every host",
            subject=_variable(subject(on_machine(ranks, r)), "MASTER_ADDR"),
            fix=Fix("Set MASTER_ADDR to an address of rank 0's host that all hosts reach"),
        )
    rest = [r for r in away if not all(_loopback(a) for a in _master(r))]
    groups = split(rest, lambda r: ", ".join(sorted(_master(r))))
    common = set.intersection(*(set(_master(r)) for r in rest)) if rest else set()
    if groups is not None and not common:
        yield warn(
            f"MASTER_ADDR resolves differently: {groups.words()}",
            "the same address on every host",
            subject=_variable(groups.subject, "MASTER_ADDR"),
            fix=Fix("Set MASTER_ADDR to an address, or make DNS and /etc/hosts agree"),
        )


def _master(rank: RankDigest) -> tuple[str, ...]:
    """What MASTER_ADDR leads to on the rank's host; an address leads to itself."""
    try:
        return (str(ipaddress.ip_address((rank.master_addr or "").strip("[]"))),)
    except ValueError:
        return rank.master_addresses or ()


def _variable(where: Subject, name: str) -> Subject:
    return Subject(host=where.host, rank=where.rank, variable=name)
