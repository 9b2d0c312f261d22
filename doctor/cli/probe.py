"""`fsdp-doctor probe`: measure the collectives that FSDP uses, and name who is slow or broken."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.join_options import joining, joining_options, place
from fsdp_doctor.cli.probe_findings import (
    Judged,
    cpu_ranks,
    deliver,
    judged,
    shown,
    sound,
    visible,
    with_wrong_data,
)
from fsdp_doctor.cli.probe_job import job_options, memory_of
from fsdp_doctor.cli.probe_rank import as_rank
from fsdp_doctor.cli.probe_wish import Wish, wish_of
from fsdp_doctor.cli.reporting import now
from fsdp_doctor.cli.selecting import expired_suppressions
from fsdp_doctor.cli.sources import ask_machine
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.source import Source
from fsdp_doctor.findings import Report
from fsdp_doctor.probe.forecast import Job
from fsdp_doctor.probe.free_gpus import in_use
from fsdp_doctor.probe.launch import ProbeError, Request
from fsdp_doctor.probe.node_links import node_links
from fsdp_doctor.probe.planning import DEFAULT_OPS, GLOO, NCCL
from fsdp_doctor.probe.session import run, turned
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.probe import OPS
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.scheduler import Identity

FACTS_SECONDS = 12.0
"""For NVML to say which GPUs there are."""
ENDING_SECONDS = 4.0
"""Of a given deadline, for ending ranks and judging."""


class Impossible(Exception):
    """What was asked for cannot be measured here; the message is one line of the report."""


@click.command("probe", short_help="Measure the collectives that FSDP uses between the ranks.")
@common("text", "json", "junit", "github", judging=True)
@click.option(
    "--nproc",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Ranks to start here. [default: one per visible GPU, else 2 or 4]",
)
@click.option(
    "--backend", type=click.Choice((NCCL, GLOO)), help="[default: nccl on GPUs that nobody uses, else gloo]"
)
@click.option("--ops", metavar="OPS", help=f"Of {', '.join(OPS)}. [default: {','.join(DEFAULT_OPS)}]")
@click.option("--sizes", metavar="SIZES", help="Whole arrays, as 64K:1G (in steps of 4) or 64K,16M,1G.")
@click.option("--unit-sizes", metavar="SIZES", help="Also these: the parameters' bytes of your FSDP units.")
@click.option(
    "--pairs/--no-pairs",
    default=None,
    help="Also transfers between every two ranks, which name a slow link. [default: up to 16 ranks]",
)
@click.option(
    "--profile",
    type=click.Choice([p.value for p in Profile]),
    default=Profile.STANDARD.value,
    help="quick: seconds, few sizes; standard; deep: more sizes. [default: standard]",
)
@click.option("--python", metavar="EXE", help="The Python that training uses, where it is another one.")
@job_options
@joining_options
@click.option("--force", is_flag=True, help="Also on GPUs that another process uses, or that ranks share.")
def command(settings: Settings, **own: object) -> int:
    """Measure all-gather, reduce-scatter and all-reduce between ranks, as FSDP uses them.

    Ranks are started here with torch elastic; under torchrun, srun or mpirun the ranks of that job measure
    together, over all of its nodes. Data are checked, and a rank, link or node that is slower than its
    peers is named by its own work, its own pauses and transfers between pairs. With --units and --tokens it
    says what the measured fabric means for a training step: communication hidden or exposed, and the time.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    wish, asked = wish_of(settings, own), joining(own)
    where = place(asked, launched=False)
    if isinstance(where, Context) and where.world_size > 1:
        return as_rank(where, asked, wish, settings, began)
    report, found = _report(wish, settings, began)
    return deliver(report, found, settings)


def _report(wish: Wish, settings: Settings, began: float) -> tuple[Report, Judged | None]:
    started = now()
    unjudged: list[str] = []
    notes: list[str] = list(expired_suppressions(settings))
    found = None
    with closing(ask_machine((Gpus,), FACTS_SECONDS)) as source:
        facts = collect(source, (Gpus, Rdma, Identity))
        try:
            request = _request(wish, settings, facts, notes, began)
            with shown() as show:
                found = _measured(request, source, settings, show, wish.job, memory_of(facts))
        except (Impossible, ProbeError) as error:
            unjudged.append(str(error))
    if found is not None:
        unjudged += found.unjudged
        notes += [f"left out: {s}" for s in found.result.skipped]
        if found.result.deadline_passed:
            unjudged.append("the deadline came before the probe was through; give more --deadline")
    told = found.data if found is not None else {}
    return (
        Report(
            command="probe",
            results=found.results if found is not None else (),
            tool=tool(),
            started=started,
            seconds=time.monotonic() - began,
            data={"target": socket.gethostname(), "profile": wish.profile.value, "notes": notes, **told},
            unjudged=tuple(unjudged),
            strict=settings.strict,
        ),
        found,
    )


def _measured(
    request: Request,
    source: Source,
    settings: Settings,
    show: Callable[[str], None],
    job: Job | None,
    memory: int | None,
) -> Judged:
    """The probe and its findings; on several GPUs also the data with the GPUs in another order."""
    request = replace(request, progress=show)
    found = judged(run(request, source), settings, job, memory)
    if sound(found) and request.plan.backend == NCCL and request.ranks > 1 and _distinct(request):
        return with_wrong_data(found, judged(run(turned(request), source), settings))
    return found


def _distinct(request: Request) -> bool:
    return request.devices is None or len(set(request.devices)) == len(request.devices)


def _request(wish: Wish, settings: Settings, facts: Facts, notes: list[str], began: float) -> Request:
    """The ranks to start. Raises `Impossible` and `click.UsageError`."""
    gpus = visible(facts)
    backend = wish.backend or (NCCL if gpus else GLOO)
    devices: tuple[int, ...] | None = None
    if backend == NCCL:
        busy = [] if wish.force else list(in_use(gpus[: wish.nproc or len(gpus)]))
        if wish.backend is None and busy:
            notes.append(f"{busy[0]}: the ranks use gloo on CPU instead; --force measures all the same")
            backend = GLOO
        else:
            _possible(gpus, busy, facts)
    ranks = wish.nproc or (len(gpus) if backend == NCCL else cpu_ranks())
    if backend == NCCL and ranks > len(gpus):
        if not wish.force:
            raise click.UsageError(
                f"--nproc {ranks}: NCCL needs a GPU for each rank and {len(gpus)} can be seen; "
                "use --backend gloo, or --force to let ranks share GPUs"
            )
        devices = tuple(i % len(gpus) for i in range(ranks))
    left = None if settings.deadline is None else began + settings.deadline - time.monotonic()
    return Request(
        plan=wish.plan(backend, ranks, None if left is None else max(left - ENDING_SECONDS, 1.0)),
        ranks=ranks,
        python=wish.python,
        devices=devices,
        links=(node_links(socket.gethostname(), facts, ranks),) if backend == NCCL else (),
        until=None if left is None else time.monotonic() + max(left - ENDING_SECONDS, 1.0),
    )


def _possible(gpus: tuple[Gpu, ...], busy: list[str], facts: Facts) -> None:
    if not gpus:
        unknown = facts.unknown((Gpus,))
        why = unknown.reason if unknown is not None else "CUDA_VISIBLE_DEVICES leaves none"
        raise Impossible(f"--backend nccl: no GPU can be used: {why}")
    if busy:
        raise Impossible(
            f"--backend nccl: {'; '.join(busy)}: wait for that, choose others by CUDA_VISIBLE_DEVICES, "
            "or say --force"
        )
