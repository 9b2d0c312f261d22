"""Whether the ranks reach each other at all."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankSet, Unreached
from fsdp_doctor.tables.rank_facts import BLOCKED

SHOWN = 8
EPHEMERAL, MASTER = "ephemeral", "master"
OPEN = Fix(
    "Open all TCP ports between the hosts of the job in the firewall or security group; or narrow the range "
    "with sysctl net.ipv4.ip_local_port_range and open that",
    None,
    Risk.NEEDS_ROOT,
    Owner.ADMIN,
)


def blocked(facts: RankSet, kind: str) -> tuple[Unreached, ...]:
    """Connections that the network did not let through, on any address of the target."""
    reached = facts.reachability
    if reached is None:
        return ()
    return tuple(
        u for u in reached.unreached if u.kind == kind and u.reason in BLOCKED and u.reached_at is None
    )


def _ways(job: RankSet, unreached: tuple[Unreached, ...]) -> dict[tuple[str, str], list[Unreached]]:
    """(host, host) -> what did not come about between them, in order."""
    hosts = {r.rank: r.host or f"rank {r.rank}" for r in job.ranks}
    found: dict[tuple[str, str], list[Unreached]] = {}
    for u in unreached:
        way = hosts.get(u.source, f"rank {u.source}"), hosts.get(u.target, f"rank {u.target}")
        found.setdefault(way, []).append(u)
    return dict(sorted(found.items()))


def _words(ways: dict[tuple[str, str], list[Unreached]]) -> str:
    told = [
        f"{source} -> {target} ({', '.join(sorted({u.reason for u in those}))})"
        for (source, target), those in list(ways.items())[:SHOWN]
    ]
    return ", ".join(told) + (f" and {len(ways) - SHOWN} more" if len(ways) > SHOWN else "")


def _subject(ways: dict[tuple[str, str], list[Unreached]]) -> Subject:
    """The hosts that are not reached, and their ranks."""
    ranks = sorted({u.target for those in ways.values() for u in those})
    hosts = sorted({target for _, target in ways})
    return Subject(host=",".join(hosts) or None, rank=ranks[0] if len(ranks) == 1 else tuple(ranks) or None)


def _evidence(ways: dict[tuple[str, str], list[Unreached]]) -> tuple[Evidence, ...]:
    tried = [u for those in ways.values() for u in those][:SHOWN]
    return tuple(
        Evidence(f"rank {u.source}", f"connect to rank {u.target} at {u.address} port {u.port}: {u.reason}")
        for u in tried
    )


@check("RNK050", Row.NCCL, needs=(RankSet,), tags=("ranks", "net"))
def ports_closed_between_hosts(facts: Facts, options: Options) -> Iterator[Finding]:
    """Hosts of the job cannot connect to each other on the ports that NCCL and gloo use.

    What: every rank listens on a port that the kernel chose, and others connect to it; also MASTER_PORT.
    Above 64 ranks a ring and a random sample stand for all pairs.
    Why: the rendezvous needs MASTER_PORT only, so that the job starts; NCCL's bootstrap and gloo then
    listen on random ports and the first collective hangs or ends with "connection refused" or "timed out".
    Fix: open TCP between all hosts of the job, not MASTER_PORT alone.
    Sources: NCCL user guide, troubleshooting (networking issues, IP ports); Linux
    Documentation/networking/ip-sysctl.rst, ip_local_port_range.
    """
    job = facts[RankSet]
    if job.reachability is None:
        yield skip(
            "connections between the ranks were not tried",
            enable="run check under the launcher of the job (torchrun, srun), with one process per rank",
        )
        return
    tried = job.reachability.tried
    closed = _ways(job, blocked(job, EPHEMERAL))
    master = _ways(job, blocked(job, MASTER))
    if closed:
        only = (
            " while MASTER_PORT answers: only MASTER_PORT is open" if tried.get(MASTER) and not master else ""
        )
        yield fail(
            f"ports that the kernel chose are closed between hosts: {_words(closed)}{only}",
            "TCP on all ports between all hosts of the job",
            subject=_subject(closed),
            fix=OPEN,
            evidence=_evidence(closed),
        )
    if master:
        port = next(u.port for those in master.values() for u in those)
        yield fail(
            f"MASTER_PORT {port} of rank 0 is closed to other hosts: {_words(master)}",
            "a MASTER_PORT that every host reaches",
            subject=_subject(master),
            row=Row.START,
            fix=Fix(f"Open TCP port {port} on rank 0's host", None, Risk.NEEDS_ROOT, Owner.ADMIN),
            evidence=_evidence(master),
        )
    if not closed and not master:
        yield ok(f"{sum(tried.values())} connections between ranks, on ports that the kernel chose")
