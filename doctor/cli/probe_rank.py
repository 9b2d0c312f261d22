"""`fsdp-doctor probe` as one rank of a job that a launcher started."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import closing

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.join_options import Joining
from fsdp_doctor.cli.output import CannotAnswer, complain
from fsdp_doctor.cli.probe_findings import deliver, judged, shown, sound, visible, with_wrong_data
from fsdp_doctor.cli.probe_follow import follow
from fsdp_doctor.cli.probe_job import memory_of
from fsdp_doctor.cli.probe_join import Call, Leading
from fsdp_doctor.cli.probe_wish import Wish
from fsdp_doctor.cli.reporting import now
from fsdp_doctor.cli.selecting import expired_suppressions
from fsdp_doctor.cli.sources import ask_machine
from fsdp_doctor.cli.version import tool
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.source import Source
from fsdp_doctor.findings import EXIT_CODES, Report, Verdict
from fsdp_doctor.probe.free_gpus import in_use
from fsdp_doctor.probe.launch import MARGIN, ProbeError
from fsdp_doctor.probe.member import About
from fsdp_doctor.probe.node_links import node_links
from fsdp_doctor.probe.planning import GLOO, NCCL
from fsdp_doctor.probe.session import TURNED_SECONDS, look_at_data
from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.probe import ProbePlan
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.scheduler import Identity

FACTS_SECONDS = 12.0
"""For NVML to say which GPUs there are."""
JOINED_SECONDS = 240.0
"""Of a whole probe under a launcher where no deadline is given."""
ARRIVAL_SHARE, JOINED_SHARE = 0.3, 0.6
"""Of that time, for ranks to come; of what is left then, for the probe itself."""


def as_rank(where: Context, asked: Joining, wish: Wish, settings: Settings, began: float) -> int:
    """The probe of the job that this process is a rank of."""
    key = wire.secret(asked.token, where.job_id, where.port)
    started, budget = now(), settings.deadline or JOINED_SECONDS
    with closing(ask_machine((Gpus,), FACTS_SECONDS)) as source, shown() as show:
        facts = collect(source, (Gpus, Rdma, Identity))
        gpus = visible(facts)
        local = 0 if where.local_rank is None else where.local_rank
        own = About(
            where.rank,
            socket.gethostname(),
            local,
            len(gpus),
            tuple(in_use(gpus[local : local + 1])),
            node_links(socket.gethostname(), facts, len(gpus)) if local == 0 else None,
        )
        arrival = asked.wait if asked.wait is not None else ARRIVAL_SHARE * budget
        call = Call(began + budget, arrival, wish.python, show)
        if not where.leads:
            code, problem = follow(where, key, own, call, source)
            if problem:
                complain(f"fsdp-doctor: rank {where.rank}: {problem}")
            return code
        return _lead(where, key, own, call, source, wish, settings, started, began, memory_of(facts))


def _lead(
    where: Context,
    key: bytes,
    own: About,
    call: Call,
    source: Source,
    wish: Wish,
    settings: Settings,
    started: str,
    began: float,
    memory: int | None,
) -> int:
    try:
        leading = Leading(where, key, own, call)
    except ProbeError as error:
        raise CannotAnswer(
            f"{error}; free MASTER_PORT, or probe this machine alone with --ranks off"
        ) from None
    code = EXIT_CODES[Verdict.INCOMPLETE]
    try:
        there = leading.gather()
        notes: list[str] = list(expired_suppressions(settings))
        planned = _joint_plan(wish, there, where.world_size, notes, call.until - time.monotonic())
        if len(there) < where.world_size:
            result = leading.absent(planned, there)
        else:
            result = leading.measure(planned, there, source)
        found = judged(result, settings, wish.job, memory)
        order = next_gpus(there) if planned.backend == NCCL and sound(found) else None
        if order is not None and call.until - time.monotonic() > TURNED_SECONDS + MARGIN:
            other = leading.measure(look_at_data(planned), there, source, order)
            found = with_wrong_data(found, judged(other, settings))
        unjudged = list(found.unjudged)
        if result.deadline_passed:
            unjudged.append("the deadline came before the probe was through")
        told: dict[str, object] = {
            "target": _target(where.world_size, len({a.host for a in there.values()})),
            "profile": wish.profile.value,
            "notes": [*notes, *(f"left out: {s}" for s in result.skipped)],
            **found.data,
        }
        report = Report(
            command="probe",
            results=found.results,
            tool=tool(),
            started=started,
            seconds=time.monotonic() - began,
            data=told,
            unjudged=tuple(unjudged),
            strict=settings.strict,
        )
        code = deliver(report, found, settings)
    finally:
        leading.close(code)
    return code


def next_gpus(there: Mapping[int, About]) -> list[int] | None:
    """CUDA indices by local rank that give each rank its neighbour's GPU.

    None where a rank is alone on its host, or sees too few GPUs: a launcher gave each rank its own.
    """
    hosts: dict[str, list[About]] = {}
    for about in there.values():
        hosts.setdefault(about.host, []).append(about)
    counts = {len(ranks) for ranks in hosts.values()}
    seen = all(a.gpus >= len(ranks) for ranks in hosts.values() for a in ranks)
    places = all(sorted(a.local_rank for a in ranks) == list(range(len(ranks))) for ranks in hosts.values())
    if len(counts) != 1 or counts == {1} or not seen or not places:
        return None
    count = counts.pop()
    return [*range(1, count), 0]


def _target(ranks: int, hosts: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"


def _joint_plan(
    wish: Wish, there: Mapping[int, About], world: int, notes: list[str], left: float
) -> ProbePlan:
    """The plan for all ranks: GPUs only where every rank has one that nobody else uses."""
    bare = sorted(r for r, a in there.items() if a.gpus <= a.local_rank)
    busy = [f"{a.host}: {said}" for a in there.values() for said in a.busy]
    backend = wish.backend or (GLOO if bare else NCCL)
    if backend == NCCL and busy and not wish.force:
        notes.append(f"{busy[0]}: the ranks use gloo on CPU instead; --force measures all the same")
        backend = GLOO
    return wish.plan(backend, world, max(JOINED_SHARE * left, 5.0))
