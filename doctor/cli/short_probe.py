"""The short probe within `check`: seconds of collectives on this machine's GPUs, or on CPU ranks."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.probe_findings import NO_JOB, cpu_ranks, facts_of, findings, judged, selected, visible
from fsdp_doctor.cli.probe_job import memory_of
from fsdp_doctor.cli.sources import ask_machine
from fsdp_doctor.findings import Result
from fsdp_doctor.probe.forecast import Job
from fsdp_doctor.probe.free_gpus import in_use
from fsdp_doctor.probe.launch import ProbeError, Request
from fsdp_doctor.probe.node_links import node_links
from fsdp_doctor.probe.planning import GLOO, NCCL, Effort, plan
from fsdp_doctor.probe.session import run
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.stack import Torch

LEAST_SECONDS = 15.0
"""Ranks need so long to start and to measure anything."""
ENDING_SECONDS = 2.0
ENABLE = "run `fsdp-doctor probe`"


@dataclass(frozen=True, slots=True)
class Probed:
    """Results of the probe's checks, the probe's figures where it was run, and what is not known of a job."""

    results: tuple[Result, ...] = ()
    data: dict[str, object] | None = None
    unjudged: tuple[str, ...] = ()


def short_probe(
    settings: Settings,
    facts: Facts | None,
    nproc: int | None,
    python: str | None,
    until: float,
    force: bool,
    job: Job | None = None,
) -> Probed:
    """Measure until `until` (monotonic) at most, or say in every result why not; empty where not selected.

    A `job` has its step forecast from the figures.
    """
    if not selected(settings):
        return Probed()
    known = facts or Facts({})
    request = _request(known, nproc, python, until, force)
    if isinstance(request, Unknown):
        return _not_probed(request, settings, job)
    try:
        with closing(ask_machine((), ENDING_SECONDS)) as source:
            result = run(request, source)
    except ProbeError as error:
        return _not_probed(Unknown(str(error), ENABLE), settings, job)
    found = judged(result, settings, job, memory_of(facts))
    return Probed(found.results, found.data, found.unjudged)


def _not_probed(why: Unknown, settings: Settings, job: Job | None) -> Probed:
    step = NO_JOB if job is None else why
    unjudged = () if job is None else (f"--units: {why.reason}",)
    return Probed(findings(facts_of(why, step=step), settings), unjudged=unjudged)


def _request(
    facts: Facts, nproc: int | None, python: str | None, until: float, force: bool
) -> Request | Unknown:
    """The ranks to start, or why none are."""
    left = until - time.monotonic() - ENDING_SECONDS
    gpus = visible(facts)
    torch = facts.find(Torch)
    if torch is None:
        return Unknown("no probe: torch could not be asked", ENABLE)
    ranks = min(nproc or len(gpus), len(gpus)) if gpus else min(nproc or 1, cpu_ranks())
    if not gpus and ranks < 2:
        why = _why_no_gpu(facts)
        return Unknown(
            f"no probe: {why}, and one CPU rank has nobody to talk to", "check --nproc 2, or probe"
        )
    if gpus and not torch.cuda_available:
        return Unknown("no probe: torch cannot use the GPUs", ENABLE)
    busy = [] if force else list(in_use(gpus[:ranks]))
    if busy:
        return Unknown(f"no probe: {busy[0]}", "end it, or say --force")
    if left < LEAST_SECONDS:
        return Unknown("no probe: too little of the deadline was left", "give more --deadline")
    backend = NCCL if gpus else GLOO
    made = plan(backend, ranks, Effort.SHORT)
    return Request(
        plan=made,
        ranks=ranks,
        python=python or sys.executable,
        links=(node_links(socket.gethostname(), facts, ranks),) if gpus else (),
        until=time.monotonic() + left,
    )


def _why_no_gpu(facts: Facts) -> str:
    unknown = facts.unknown((Gpus,))
    return "no GPU is visible" if unknown is None or unknown.absent else "the GPUs could not be asked"
