"""The hosts of a job: clocks, identities, namespaces, reboots."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import named, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankDigest, RankSet
from fsdp_doctor.tables.rank_facts import (
    CLOCK_FAIL_SECONDS,
    CLOCK_WARN_SECONDS,
    OLD_NODE_SECONDS,
    YOUNG_NODE_SECONDS,
)

CLOCK_FIX = Fix(
    "Let chrony or systemd-timesyncd set the clock", "chronyc makestep", Risk.NEEDS_ROOT, Owner.ADMIN
)


@check("RNK040", Row.START, needs=(RankSet,), tags=("ranks", "host"))
def clocks_differ(facts: Facts, options: Options) -> Iterator[Finding]:
    """Clocks of the hosts differ.

    What: compares each rank's clock with rank 0's, measured while the ranks were gathered.
    Why: logs of different nodes cannot be put in order, and a c10d rendezvous takes a node whose
    heartbeat looks 15 s old for dead; certificates fail at larger offsets.
    Fix: run NTP on all nodes.
    Sources: torch 2.13, distributed/elastic/rendezvous/dynamic_rendezvous.py (keep-alive).
    """
    ranks = [r for r in facts[RankSet].ranks if r.clock_offset_seconds is not None]
    if len(ranks) < 2:
        yield skip("clock offsets were not measured")
        return
    far = [r for r in ranks if abs(r.clock_offset_seconds or 0.0) > CLOCK_WARN_SECONDS]
    if not far:
        widest = max(abs(r.clock_offset_seconds or 0.0) for r in ranks)
        yield ok(f"clocks agree within {widest * 1000:.1f} ms")
        return
    for host in dict.fromkeys(r.host for r in far):
        those = [r for r in far if r.host == host]
        offset = max((r.clock_offset_seconds or 0.0 for r in those), key=abs)
        say = fail if abs(offset) >= CLOCK_FAIL_SECONDS else warn
        side = "ahead of" if offset > 0 else "behind"
        yield say(
            f"the clock of {named(those)} is {abs(offset):.1f} s {side} rank 0's",
            f"clock skew below {CLOCK_WARN_SECONDS:.0f} s",
            subject=subject(those),
            fix=CLOCK_FIX,
        )


@check("RNK041", Row.NCCL, needs=(RankSet,), tags=("ranks", "host"))
def boot_id_shared(facts: Facts, options: Options) -> Iterator[Finding]:
    """Different hosts have the same boot id.

    What: looks for one boot id under several host names (without a container that would explain it).
    Why: NCCL takes ranks with one boot id for one machine and tries shared memory between machines.
    Fix: set NCCL_HOSTID to the host name on every node.
    Sources: NCCL issue 248 (host hash).
    """
    ranks = facts[RankSet].ranks
    hosts: dict[str, dict[str, list[RankDigest]]] = {}
    for r in ranks:
        if r.boot_id and r.host:
            hosts.setdefault(r.boot_id, {}).setdefault(r.host, []).append(r)
    for names in hosts.values():
        those = [r for ranks_here in names.values() for r in ranks_here]
        if len(names) < 2:
            continue
        found = f"hosts {', '.join(sorted(names))} have the same boot id"
        if all(r.container for r in those):
            yield info(f"{found}: containers of one machine", subject=subject(those))
        elif all("NCCL_HOSTID" in r.environment for r in those):
            yield info(f"{found}; NCCL_HOSTID tells them apart", subject=subject(those))
        else:
            yield fail(
                found,
                "one boot id per machine",
                subject=subject(those),
                fix=Fix("Set NCCL_HOSTID=$(hostname) on every node"),
            )


@check("RNK042", Row.START, needs=(RankSet,), tags=("ranks", "host"))
def host_name_shared(facts: Facts, options: Options) -> Iterator[Finding]:
    """Different machines have the same host name.

    What: looks for one host name with several boot ids.
    Why: torch elastic, gloo and checkpoint files name nodes by host name; two of one name overwrite each
    other, and messages name the wrong machine.
    Fix: give each machine a name of its own.
    Sources: torch elastic, agent.
    """
    boots: dict[str, set[str]] = {}
    ranks = facts[RankSet].ranks
    for r in ranks:
        if r.host and r.boot_id:
            boots.setdefault(r.host, set()).add(r.boot_id)
    for host, ids in boots.items():
        if len(ids) > 1:
            those = [r for r in ranks if r.host == host]
            yield warn(
                f"{len(ids)} machines call themselves {host} ({named(those)})",
                "one machine per host name",
                subject=subject(those),
                fix=Fix(f"Rename the machines that are called {host}", None, Risk.NEEDS_ROOT, Owner.ADMIN),
            )


@check("RNK043", Row.SLOW, needs=(RankSet,), tags=("ranks", "container"))
def local_ranks_isolated(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks of one machine cannot share memory.

    What: compares the IPC namespace and the size of /dev/shm of ranks with one boot id.
    Why: ranks of one machine in containers of their own cannot use shared memory or CUDA IPC: NCCL fails
    at start or sends everything over the network.
    Fix: run all ranks of a node in one container, or share the namespaces (--ipc=host).
    Sources: NCCL user guide, troubleshooting (containers).
    """
    machines: dict[str, list[RankDigest]] = {}
    for r in facts[RankSet].ranks:
        if r.boot_id:
            machines.setdefault(r.boot_id, []).append(r)
    compared = False
    for those in machines.values():
        if len(those) < 2 or not all(r.ipc_namespace for r in those):
            continue
        compared = True
        groups = split(those, lambda r: r.ipc_namespace)
        if groups is not None:
            yield fail(
                f"ranks of one machine are in different IPC namespaces: {groups.words()}",
                "one IPC namespace per machine",
                subject=subject(those),
                fix=Fix("Run the ranks of a node in one container, or with --ipc=host"),
            )
    if not compared:
        yield skip("no machine has several ranks that say their IPC namespace")


@check("RNK044", None, needs=(RankSet,), tags=("ranks", "host"))
def host_rebooted(facts: Facts, options: Options) -> Iterator[Finding]:
    """One host is much younger than the others.

    What: compares the time since boot of the hosts.
    Why: a node that has just rebooted among old ones may have gone down during the last run, and may do
    so again; mounts, fabric manager and peermem may not be back.
    Fix: look at its kernel log of the previous boot (journalctl -k -b -1).
    Sources: proc(5), /proc/uptime.
    """
    ranks = [r for r in facts[RankSet].ranks if r.uptime is not None]
    young = [r for r in ranks if (r.uptime or 0.0) < YOUNG_NODE_SECONDS]
    if young and len(young) < len(ranks) and all(
        (r.uptime or 0.0) > OLD_NODE_SECONDS for r in ranks if r not in young
    ):  # fmt: skip
        minutes = min(r.uptime or 0.0 for r in young) / 60
        yield info(
            f"{named(young)} rebooted {minutes:.0f} minutes ago, the others have been up for more than a day",
            expected="hosts that did not go down during the last run",
            subject=subject(young),
        )
