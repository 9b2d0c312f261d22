"""`fsdp-doctor diagnose --live`: the job that runs on this host, and the rank that the others wait for."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

import click

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.live_text import live_text
from fsdp_doctor.cli.progress import shown
from fsdp_doctor.cli.reporting import now, rendered
from fsdp_doctor.cli.selecting import chosen, known_suppressions
from fsdp_doctor.cli.sources import ask_machine
from fsdp_doctor.cli.version import tool
from fsdp_doctor.diagnosis.live.find import NoRanks, Seen, jobs, matches, processes, ranks_below
from fsdp_doctor.diagnosis.live.gpu_loads import gpu_loads
from fsdp_doctor.diagnosis.live.report_data import live_data
from fsdp_doctor.diagnosis.live.sample import look
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.engine.suppress import suppress
from fsdp_doctor.facts.collect import collect
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.report.describe import counts_words
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.gpu import Driver, Gpus
from fsdp_doctor.subjects.stacks import GpuLoad, LiveJob

NVML_SECONDS = 8.0
ANY = "auto"
"""The job is looked for: there is one, or it is asked which."""
LIVE_TAG = "live"


def diagnose_live(pid: str | None, job: str | None, settings: Settings, began: float) -> int:
    """Look at a job and deliver what is seen. `pid` is `ANY`, or a process of the job or its launcher."""
    started = now()
    with shown("reading the stacks of the ranks"):
        found = look_at(pid, job)
    facts = Facts({LiveJob: Known(found, "the ranks' processes")})
    report = Report(
        command="diagnose",
        results=judged(facts, settings),
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data={"target": f"job {found.job} on {found.host}", "notes": list(found.notes), **live_data(found)},
        unjudged=tuple(_unjudged(found)),
        strict=settings.strict,
    )
    if settings.format == "text":
        # Each finding has its fix already; the text lists `fixes` of other commands apart.
        shown_report = replace(report, data={k: v for k, v in report.data.items() if k != "fixes"})
        text = live_text(found, settings.style()) + rendered(shown_report, settings)
    else:
        text = rendered(report, settings)
    settings.deliver(text, f"{report.verdict.value}: {counts_words(report)}")
    return report.exit_code


def judged(facts: Facts, settings: Settings) -> tuple[Result, ...]:
    """What the selected checks of running jobs say."""
    wanted = chosen(settings)
    checks = [c for c in registry().checks if LIVE_TAG in c.tags and wanted.includes(c.code)]
    today = datetime.now(timezone.utc).date()
    return suppress(run_checks(checks, facts, Options()), known_suppressions(settings), today)


def look_at(pid: str | None, job: str | None) -> LiveJob:
    """The job that is meant. Raises `click.UsageError` where there is none, or several and none is named."""
    if sys.platform != "linux":
        raise click.UsageError("--live reads /proc: it works on Linux only")
    table = processes()
    ranks, others = _wanted(table, pid, job)
    return look(ranks, table=table, loads=loads_now, other_jobs=others)


def _wanted(
    table: Mapping[int, Seen], pid: str | None, job: str | None
) -> tuple[Sequence[Seen], tuple[str, ...]]:
    if pid not in (None, ANY, ""):
        if not str(pid).isdigit():
            raise click.UsageError(f"--live {pid}: a process id is a number")
        try:
            return ranks_below(table, int(str(pid))), ()
        except NoRanks as error:
            raise click.UsageError(f"--live {pid}: {error}") from None
    found = jobs(table)
    if job is not None:
        found = {n: m for n, m in found.items() if matches(n, m, job)}
    if not found:
        what = f"no job {job}" if job is not None else "no rank of a job"
        raise click.UsageError(
            f"--live: {what} runs on this host as this user; name a process: --live PID (of torchrun, srun, "
            "or a rank)"
        )
    if len(found) > 1:
        told = "; ".join(f"{n} ({len(m)} ranks, process {m[0].pid})" for n, m in found.items())
        raise click.UsageError(f"--live: {len(found)} jobs run here: {told}; name one: --live PID")
    return next(iter(found.values())), ()


def loads_now(ranks: Mapping[int, int]) -> tuple[GpuLoad, ...]:
    """What NVML says of the GPUs of these processes (id -> rank) now."""
    with closing(ask_machine((Driver, Gpus), NVML_SECONDS)) as source:
        gpus = collect(source, (Driver, Gpus)).find(Gpus)
    return gpu_loads(gpus.present, ranks) if gpus is not None else ()


def _unjudged(job: LiveJob) -> list[str]:
    """Ranks that were asked for and could not be seen at all."""
    if any(p.threads for p in job.processes) or any(p.state in ("T", "t") for p in job.processes):
        return []
    first = next((p.problem for p in job.processes if p.problem), "no answer")
    return [f"--live: no stack of any rank could be read: {first}"]
