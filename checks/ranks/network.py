"""The interfaces that NCCL would use on the hosts of a job, against each other."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ranks._choice import Chosen, choices
from fsdp_doctor.checks.ranks._groups import knows_nodes, machines, named, on_machine, split, subject
from fsdp_doctor.engine.interface_kinds import oddity
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet, Unreached

IFNAME = "NCCL_SOCKET_IFNAME"
NAME_CARD = Fix("Name the card of the cluster's network exactly on every node", f"export {IFNAME}==eth0")
SHOWN = 8


def _about(chosen: Chosen, ranks: tuple[RankDigest, ...]) -> Subject:
    where = subject(on_machine(ranks, chosen.rank))
    variable = IFNAME if IFNAME in chosen.rank.environment else None
    return Subject(host=where.host, rank=where.rank, device=chosen.interface.name, variable=variable)


@check("RNK051", Row.NCCL, needs=(RankSet,), tags=("ranks", "net", "nccl"))
def interfaces_cannot_meet(facts: Facts, options: Options) -> Iterator[Finding]:
    """NCCL would choose interfaces on which the hosts do not reach each other.

    What: predicts the interface of NCCL's bootstrap on every host (NCCL_SOCKET_IFNAME, else NCCL's own
    order) and compares the choices: a loopback, a bridge of the same private network on several hosts,
    IPv4 here and IPv6 there, or an address that another host could not connect to.
    Why: each rank announces the address of that interface. Peers connect to it and get nowhere: the first
    collective hangs or ends with "connection refused" or "no route to host".
    Fix: name the card of the cluster's network in NCCL_SOCKET_IFNAME, with = for the exact name.
    Sources: NCCL user guide, env.rst (NCCL_SOCKET_IFNAME); NCCL 2.30 sources (ncclFindInterfaces).
    """
    job = facts[RankSet]
    firsts = machines(job.ranks)
    found = choices(firsts)
    if len(firsts) < 2:
        yield ok("all ranks are on one host")
        return
    if len(found) < 2:
        yield skip("fewer than two hosts say which interfaces they have")
        return
    unreached = _not_at_the_choice(job)
    bad: set[int] = set()
    for chosen in found:
        tries = [u for r in on_machine(job.ranks, chosen.rank) for u in unreached.get(r.rank, ())]
        finding = _measured(chosen, tries, job.ranks) or _lonely(chosen, job.ranks)
        if finding is not None:
            bad.add(chosen.rank.rank)
            yield finding
    rest = tuple(c for c in found if c.rank.rank not in bad and oddity(c.interface) != "the loopback")
    if job.reachability is None or bad:
        yield from _compared(rest, job.ranks)
    if not bad and job.reachability is not None:
        yield ok(", ".join(c.words for c in found[:SHOWN]))


def _not_at_the_choice(job: RankSet) -> dict[int, list[Unreached]]:
    """Rank -> connections to the address that it would announce which failed, while another one answered."""
    found: dict[int, list[Unreached]] = {}
    for u in job.reachability.unreached if job.reachability is not None else ():
        if u.kind == "ephemeral" and u.reached_at is not None:
            found.setdefault(u.target, []).append(u)
    return found


def _measured(chosen: Chosen, tries: list[Unreached], ranks: tuple[RankDigest, ...]) -> Finding | None:
    if not tries:
        return None
    first = tries[0]
    sources = named([r for r in ranks if r.rank in {u.source for u in tries}])
    return fail(
        f"NCCL would use {chosen.words}, because {chosen.rule}: {sources} could not connect there "
        f"({first.reason}), while {first.reached_at} of the same host answers",
        "an interface that the other hosts reach",
        subject=_about(chosen, ranks),
        fix=NAME_CARD,
    )


def _lonely(chosen: Chosen, ranks: tuple[RankDigest, ...]) -> Finding | None:
    """The loopback, where the machine itself could not know that the job has other nodes."""
    if oddity(chosen.interface) != "the loopback" or knows_nodes(chosen.rank):
        return None
    return fail(
        f"NCCL would use the loopback on {chosen.words}, because {chosen.rule}, in a job of several hosts",
        "an interface that the other hosts reach",
        subject=_about(chosen, ranks),
        fix=NAME_CARD,
    )


def _compared(found: tuple[Chosen, ...], ranks: tuple[RankDigest, ...]) -> Iterator[Finding]:
    """What the choices say by themselves, where no connection was tried."""
    bridges = [c for c in found if oddity(c.interface) is not None and c.network is not None]
    for group in {c.network: [d for d in bridges if d.network == c.network] for c in bridges}.values():
        if len(group) > 1:
            yield fail(
                f"NCCL would use a bridge of the same private network on several hosts: "
                f"{', '.join(c.words for c in group[:SHOWN])}, because {group[0].rule}",
                "cards on the network that the hosts share",
                subject=Subject(
                    host=",".join(sorted(c.rank.host for c in group if c.rank.host)) or None,
                    device=group[0].interface.name,
                    variable=IFNAME if IFNAME in group[0].rank.environment else None,
                ),
                fix=NAME_CARD,
            )
    plain = [c for c in found if c not in bridges and c.network is not None]
    words = ", ".join(c.words for c in plain[:SHOWN])
    families = split([c.rank for c in plain], lambda r: next(_family(c) for c in plain if c.rank is r))
    networks = split([c.rank for c in plain], lambda r: next(str(c.network) for c in plain if c.rank is r))
    if families is not None:
        yield fail(
            f"NCCL would use IPv4 on some hosts and IPv6 on others: {words}",
            "one address family on all hosts",
            subject=families.subject,
            fix=Fix("Set NCCL_SOCKET_FAMILY to AF_INET or AF_INET6 on every node"),
        )
    elif networks is not None:
        yield info(
            f"NCCL would use interfaces in different networks: {words}; they have to be routed",
            expected="interfaces that reach each other",
            subject=networks.subject,
        )


def _family(chosen: Chosen) -> str:
    return "IPv6" if ":" in (chosen.address or "") else "IPv4"


@check("RNK054", Row.NCCL, needs=(RankSet,), tags=("ranks", "net"))
def mtu_differs(facts: Facts, options: Options) -> Iterator[Finding]:
    """The interfaces that NCCL would use have different MTUs on different hosts.

    What: compares the MTU of the predicted interfaces of hosts that are in one network.
    Why: a host with a larger MTU sends packets that another drops. Small messages pass and large ones
    stall, which looks like a hang in the first large all-gather.
    Fix: set one MTU on all hosts and on the switch between them.
    Sources: ip-link(8); RFC 1191.
    """
    ranks = facts[RankSet].ranks
    found = [c for c in choices(machines(ranks)) if c.interface.mtu is not None]
    if len(machines(ranks)) > 1 and len(found) < 2:
        yield skip("fewer than two hosts say the MTU of the interface that NCCL would use")
        return
    by_network: dict[str, list[Chosen]] = {}
    for c in found:
        if oddity(c.interface) is None and c.network is not None:
            by_network.setdefault(str(c.network), []).append(c)
    for network, those in by_network.items():
        mtus = {c.rank.rank: c.interface.mtu for c in those}
        groups = split([c.rank for c in those], lambda r, m=mtus: m[r.rank])  # type: ignore[misc]
        if groups is not None:
            yield warn(
                f"MTU differs in {network}: {groups.words(lambda m: f'{m}')}",
                "one MTU on all hosts of a network",
                subject=Subject(
                    host=groups.subject.host, rank=groups.subject.rank, device=those[0].interface.name
                ),
                fix=Fix(
                    "Set the same MTU on the cards of all hosts (ip link set NAME mtu N) and on the switch",
                    None,
                    Risk.NEEDS_ROOT,
                    Owner.ADMIN,
                ),
            )
