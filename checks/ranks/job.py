"""The job itself: ranks that never came, and ranks that disagree about what the job is."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import named, spans, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Row, Subject, fail, ok
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankSet
from fsdp_doctor.subjects.scheduler import Scheduler

SHOWN = 8
"""Hosts and remarks that one finding lists."""


@check("RNK001", Row.START, needs=(RankSet,), uses=(Scheduler,), tags=("ranks",))
def ranks_missing(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks of the job never reported.

    What: compares the ranks that reported with the world size.
    Why: rendezvous and the first collective wait for every rank; the ones that are there print a time-out
    and are taken for the culprits.
    Fix: look at the named hosts: is the process there, does it reach MASTER_ADDR, is the node up?
    Sources: torch elastic, rendezvous.
    """
    job = facts[RankSet]
    missing = job.missing
    if not missing:
        yield ok(f"all {job.world_size} ranks reported")
        return
    hosts = _hosts_of(job, missing)
    waited = f" in {job.waited_seconds:.0f} s" if job.waited_seconds is not None else ""
    where = f" on {', '.join(hosts[:SHOWN])}" if hosts else _whole_nodes(job, missing)
    one = len(missing) == 1
    found = (
        f"{'rank' if one else 'ranks'} {spans(missing)}{where} {'is' if one else 'are'} missing: "
        f"{job.world_size - len(missing)} of {job.world_size} ranks reported{waited}"
    )
    remarks = tuple(Evidence(f"rank {r}", text) for r, text in sorted(job.silent.items()) if r in missing)[
        :SHOWN
    ]
    if remarks:
        found += " (" + "; ".join(f"{e.source} {e.text}" for e in remarks) + ")"
    yield fail(
        found,
        f"all {job.world_size} ranks",
        subject=Subject(host=",".join(hosts) or None, rank=missing[0] if one else missing),
        fix=Fix("Find out why the named ranks did not start or cannot reach rank 0, then start again"),
        evidence=remarks,
    )


def _whole_nodes(job: RankSet, missing: tuple[int, ...]) -> str:
    """The number of a node that is missing as a whole, where nothing says its name."""
    per_node = {r.local_world_size for r in job.ranks if r.local_world_size}
    if len(per_node) != 1:
        return ""
    size = next(iter(per_node))
    here = {r.rank // size for r in job.ranks}
    nodes = sorted({r // size for r in missing} - here)
    if not nodes:
        return ""
    return f" on {'node' if len(nodes) == 1 else 'nodes'} {spans(nodes)}, of which no rank came"


def _hosts_of(job: RankSet, missing: tuple[int, ...]) -> list[str]:
    """Hosts of the missing ranks: as they said themselves, else by the node list and the ranks per node."""
    found = {r: _host_of(job, r) for r in missing}
    if not any(found.values()) and job.node_list:
        short = {h.split(".")[0] for h in job.hosts}
        return [h for h in job.node_list if h.split(".")[0] not in short]
    return list(dict.fromkeys(h for h in found.values() if h))


def _host_of(job: RankSet, rank: int) -> str | None:
    if rank in job.silent_hosts:
        return job.silent_hosts[rank]
    per_node = {r.local_world_size for r in job.ranks if r.local_world_size}
    if len(per_node) != 1:
        return None
    place = rank // next(iter(per_node))
    if job.node_list:
        return job.node_list[place] if 0 <= place < len(job.node_list) else None
    size = next(iter(per_node))
    return next((r.host for r in job.ranks if r.host and r.rank // size == place), None)


@check("RNK010", Row.START, needs=(RankSet,), tags=("ranks",))
def job_described_differently(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks disagree about the job: world size, MASTER_ADDR or MASTER_PORT.

    What: compares WORLD_SIZE, MASTER_ADDR and MASTER_PORT over ranks.
    Why: a rank with another address waits for a job that does not exist; with another world size the
    rendezvous never completes.
    Fix: start all nodes by the same command; set the variables in one place.
    Sources: torch.distributed, environment variable initialisation.
    """
    ranks = facts[RankSet].ranks
    sizes = split(ranks, lambda r: r.world_size)
    if sizes is not None:
        yield fail(
            f"WORLD_SIZE differs: {sizes.words()}",
            "one world size on all ranks",
            subject=sizes.subject,
            fix=Fix("Start all nodes with the same number of nodes and processes"),
        )
    masters = split(ranks, lambda r: f"{r.master_addr}:{r.master_port}" if r.master_addr else None)
    if masters is not None:
        yield fail(
            f"MASTER_ADDR:MASTER_PORT differs: {masters.words()}",
            "one address of rank 0 on all ranks",
            subject=masters.subject,
            fix=Fix("Set MASTER_ADDR and MASTER_PORT to the same values on every node"),
        )


@check("RNK011", Row.START, needs=(RankSet,), tags=("ranks",))
def rank_claimed_twice(facts: Facts, options: Options) -> Iterator[Finding]:
    """Two processes of one host claim the same local rank.

    What: looks for ranks of one host with the same LOCAL_RANK that do not have a GPU each.
    Why: both would use the same GPU and the same rank's files.
    Fix: let the launcher set LOCAL_RANK; with srun set it from SLURM_LOCALID.
    Sources: torchrun documentation.
    """
    seen: dict[tuple[str, int, str | None], list[int]] = {}
    ranks = facts[RankSet].ranks
    for r in ranks:
        if r.host is not None and r.local_rank is not None:
            seen.setdefault((r.host, r.local_rank, r.gpu.uuid if r.gpu else None), []).append(r.rank)
    for (host, local, gpu), numbers in seen.items():
        if len(numbers) > 1 and gpu is None:
            twice = [r for r in ranks if r.rank in numbers]
            yield fail(
                f"{named(twice)} all have LOCAL_RANK {local} on {host}",
                "one LOCAL_RANK per process of a host",
                subject=subject(twice),
                fix=Fix("Set LOCAL_RANK from the launcher: SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK"),
            )


@check("RNK012", Row.START, needs=(RankSet,), tags=("ranks",))
def rank_taken_twice(facts: Facts, options: Options) -> Iterator[Finding]:
    """Several processes say that they are the same rank.

    What: counts the processes that came to rank 0 under one rank.
    Why: the store takes the second for the first. One of them waits for ever, and as many other ranks as
    there are doubles are missing.
    Fix: let the launcher set RANK; in a batch script take it from SLURM_PROCID, once per task.
    Sources: torch.distributed, environment variable initialisation.
    """
    job = facts[RankSet]
    for rank, hosts in sorted(job.claims.items()):
        first = next((r.host for r in job.ranks if r.rank == rank), None) or job.silent_hosts.get(rank)
        places = ", ".join(sorted(h for h in {first, *hosts} if h))
        yield fail(
            f"{len(hosts) + 1} processes say they are rank {rank}{f' ({places})' if places else ''}",
            "one process per rank",
            subject=Subject(rank=rank, host=places.replace(", ", ",") or None, variable="RANK"),
            fix=Fix("Let the launcher set RANK for each process, or take it from SLURM_PROCID"),
        )
