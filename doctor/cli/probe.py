"""`fsdp-doctor probe`: measure the collectives that FSDP uses, and name who is slow or broken."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.join_options import Joining, joining, joining_options, place
from fsdp_doctor.cli.output import CannotAnswer, complain, is_terminal
from fsdp_doctor.cli.probe_join import Call, Leading, follow
from fsdp_doctor.cli.probe_text import render as figures_text
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.cli.sources import ask_machine, interpreter
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.options import Options, Profile
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.facts.source import Source
from fsdp_doctor.findings import EXIT_CODES, Report, Result, Status, Verdict
from fsdp_doctor.probe.free_gpus import in_use
from fsdp_doctor.probe.launch import ProbeError, Request
from fsdp_doctor.probe.member import About
from fsdp_doctor.probe.node_links import node_links
from fsdp_doctor.probe.planning import DEFAULT_OPS, GLOO, NCCL, Effort, SizeError, parse_sizes, plan
from fsdp_doctor.probe.report_data import data
from fsdp_doctor.probe.session import run, turned
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.ranks import wire
from fsdp_doctor.ranks.context import Context
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.fabric import Fabric
from fsdp_doctor.subjects.fact import Facts, Known, Unknown
from fsdp_doctor.subjects.gpu import Driver, Gpu, Gpus
from fsdp_doctor.subjects.probe import OPS, ProbePlan, ProbeResult
from fsdp_doctor.subjects.rdma import Rdma
from fsdp_doctor.subjects.scheduler import Identity

FAMILY = "PRB"
FACTS_SECONDS = 12.0
"""For NVML to say which GPUs there are."""
ENDING_SECONDS = 4.0
"""Of a given deadline, for ending ranks and judging."""
DEEP_CPU, DEEP_GPU = "64K:64M", "64K:1G"
FEW_CORES, CPU_RANKS = 4, 4
JOINED_SECONDS = 240.0
"""Of a whole probe under a launcher where no deadline is given."""
ARRIVAL_SHARE, JOINED_SHARE = 0.3, 0.6
"""Of that time, for ranks to come; of what is left then, for the probe itself."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for beyond the common options."""

    nproc: int | None
    backend: str | None
    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    units: tuple[int, ...]
    pairs: bool | None
    profile: Profile
    python: str
    force: bool


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
@joining_options
@click.option("--force", is_flag=True, help="Also on GPUs that another process uses, or that ranks share.")
def command(settings: Settings, **own: object) -> int:
    """Measure all-gather, reduce-scatter and all-reduce between ranks, as FSDP uses them.

    Ranks are started here with torch elastic; under torchrun, srun or mpirun the ranks of that job measure
    together, over all of its nodes. Data are checked, and a rank, link or node that is slower than its
    peers is named by its own work, its own pauses and transfers between pairs.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    wish, asked = _wish(settings, own), joining(own)
    where = place(asked, launched=False)
    if isinstance(where, Context) and where.world_size > 1:
        return _as_rank(where, asked, wish, settings, began)
    report, result, fabric = _report(wish, settings, began)
    return _deliver(report, result, fabric, settings)


def _deliver(report: Report, result: ProbeResult | None, fabric: Fabric, settings: Settings) -> int:
    text = rendered(report, settings)
    if settings.format == "text" and result is not None:
        text = figures_text(result, fabric, settings.style()) + text
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def _as_rank(where: Context, asked: Joining, wish: Wish, settings: Settings, began: float) -> int:
    """The probe of the job that this process is a rank of."""
    key = wire.secret(asked.token, where.job_id, where.port)
    started, budget = now(), settings.deadline or JOINED_SECONDS
    with closing(ask_machine((Driver, Gpus), FACTS_SECONDS)) as source, _shown() as show:
        facts = collect(source, (Driver, Gpus, Rdma, Identity))
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
        return _lead(where, key, own, call, source, wish, settings, started, began)


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
        notes: list[str] = []
        planned = _joint_plan(wish, there, where.world_size, notes, call.until - time.monotonic())
        if len(there) < where.world_size:
            result = leading.absent(planned, there)
        else:
            result = leading.measure(planned, there, source)
        fabric = conclude(result)
        unjudged = ["the deadline came before the probe was through"] if result.deadline_passed else []
        told: dict[str, object] = {
            "target": _target(where.world_size, len({a.host for a in there.values()})),
            "profile": wish.profile.value,
            "notes": [*notes, *(f"left out: {s}" for s in result.skipped)],
            **data(result, fabric),
        }
        results = judged(result, settings)
        report = Report(
            command="probe",
            results=results,
            tool=tool(),
            started=started,
            seconds=time.monotonic() - began,
            data=told,
            unjudged=tuple(unjudged),
            strict=settings.strict,
        )
        code = _deliver(report, result, fabric, settings)
    finally:
        leading.close(code)
    return code


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
    return plan(
        backend,
        world,
        Effort.SHORT if wish.profile is Profile.QUICK else Effort.FULL,
        ops=wish.ops,
        sweep=wish.sizes or _deep(wish.profile, backend),
        units=wish.units,
        pairs=wish.pairs,
        seconds=max(JOINED_SHARE * left, 5.0),
    )


def _wish(settings: Settings, own: dict[str, object]) -> Wish:
    nproc, backend, pairs, python = own["nproc"], own["backend"], own["pairs"], own["python"]
    profile = Profile(own["profile"])
    return Wish(
        nproc=nproc if isinstance(nproc, int) else settings.config.nproc,
        backend=backend if isinstance(backend, str) else None,
        ops=_ops(own["ops"]),
        sizes=_sizes("--sizes", own["sizes"]),
        units=_sizes("--unit-sizes", own["unit_sizes"]),
        pairs=pairs if isinstance(pairs, bool) else True if profile is Profile.DEEP else None,
        profile=profile,
        python=interpreter(python) if isinstance(python, str) else sys.executable,
        force=bool(own["force"]),
    )


def _ops(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        return DEFAULT_OPS
    ops = tuple(dict.fromkeys(o.strip().replace("-", "_") for o in text.split(",") if o.strip()))
    unknown = [o for o in ops if o not in OPS]
    if unknown or not ops:
        named = unknown[0] if unknown else ""
        raise click.UsageError(f"--ops: no operation {named!r}; there are {', '.join(OPS)}")
    return ops


def _sizes(option: str, text: object) -> tuple[int, ...]:
    if not isinstance(text, str):
        return ()
    try:
        return parse_sizes(text)
    except SizeError as error:
        raise click.UsageError(f"{option}: {error}") from None


def _report(wish: Wish, settings: Settings, began: float) -> tuple[Report, ProbeResult | None, Fabric]:
    started = now()
    results: tuple[Result, ...] = ()
    told: dict[str, object] = {}
    unjudged: list[str] = []
    notes: list[str] = []
    result, fabric = None, Fabric()
    with closing(ask_machine((Driver, Gpus), FACTS_SECONDS)) as source:
        facts = collect(source, (Driver, Gpus, Rdma, Identity))
        try:
            request = _request(wish, settings, facts, notes, began)
            with _shown() as show:
                result, results = _measured(request, source, settings, show)
            fabric = conclude(result)
            told = data(result, fabric)
        except (Impossible, ProbeError) as error:
            unjudged.append(str(error))
    if result is not None and result.deadline_passed:
        unjudged.append("the deadline came before the probe was through; give more --deadline")
    notes += [f"left out: {s}" for s in result.skipped] if result is not None else []
    return (
        Report(
            command="probe",
            results=results,
            tool=tool(),
            started=started,
            seconds=time.monotonic() - began,
            data={"target": socket.gethostname(), "profile": wish.profile.value, "notes": notes, **told},
            unjudged=tuple(unjudged),
            strict=settings.strict,
        ),
        result,
        fabric,
    )


def _measured(
    request: Request, source: Source, settings: Settings, show: Callable[[str], None]
) -> tuple[ProbeResult, tuple[Result, ...]]:
    """The probe and its findings; on several GPUs also the data with the GPUs in another order."""
    from dataclasses import replace

    request = replace(request, progress=show)
    result = run(request, source)
    results = judged(result, settings)
    sound = not any(r.status is Status.FAIL for r in results) and not result.deadline_passed
    if sound and request.plan.backend == NCCL and request.ranks > 1 and _distinct(request):
        other = run(turned(request), source)
        results += tuple(r for r in judged(other, settings) if r.row == "wrong" and r.status is Status.FAIL)
    return result, results


def _distinct(request: Request) -> bool:
    return request.devices is None or len(set(request.devices)) == len(request.devices)


def judged(result: ProbeResult, settings: Settings) -> tuple[Result, ...]:
    """The findings of the probe's checks that the selection leaves."""
    from datetime import datetime, timezone

    wanted = chosen(settings)
    checks = tuple(c for c in registry().checks if c.family == FAMILY and wanted.includes(c.code))
    facts = facts_of(result, conclude(result))
    today = datetime.now(timezone.utc).date()
    return suppress(run_checks(checks, facts, Options()), known_suppressions(settings), today)


def facts_of(result: ProbeResult | Unknown, fabric: Fabric | None = None) -> Facts:
    """What the probe's checks are given."""
    known = "the probe"
    if isinstance(result, Unknown) or fabric is None:
        reason = result if isinstance(result, Unknown) else Unknown("the probe was not judged")
        measured: Known[object] | Unknown = reason
        concluded: Known[object] | Unknown = reason
    else:
        measured, concluded = Known(result, known), Known(fabric, known)
    host = Known(Identity(socket.gethostname(), None, None), known)
    return Facts({ProbeResult: measured, Fabric: concluded, Identity: host})


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
        plan=plan(
            backend,
            ranks,
            Effort.SHORT if wish.profile is Profile.QUICK else Effort.FULL,
            ops=wish.ops,
            sweep=wish.sizes or _deep(wish.profile, backend),
            units=wish.units,
            pairs=wish.pairs,
            seconds=None if left is None else max(left - ENDING_SECONDS, 1.0),
        ),
        ranks=ranks,
        python=wish.python,
        devices=devices,
        links=(node_links(socket.gethostname(), facts, ranks),) if backend == NCCL else (),
        until=None if left is None else time.monotonic() + max(left - ENDING_SECONDS, 1.0),
    )


def _deep(profile: Profile, backend: str) -> tuple[int, ...]:
    if profile is not Profile.DEEP:
        return ()
    return parse_sizes(DEEP_GPU if backend == NCCL else DEEP_CPU)


def visible(facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs that CUDA would show to ranks started here, in its order."""
    gpus = facts.find(Gpus)
    if gpus is None:
        return ()
    by_index = {g.index: g for g in gpus.present}
    return (
        tuple(by_index[i] for i in gpus.visible if i in by_index)
        if gpus.visible is not None
        else gpus.present
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


def cpu_ranks() -> int:
    """Ranks to start where there is no GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return CPU_RANKS if cores >= FEW_CORES else 2


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Where the ranks are, on standard error, for a person only."""
    if not is_terminal(sys.stderr):
        yield lambda said: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting ranks") as status:
        yield lambda said: status.update(escape(f"probe: {said}"))
