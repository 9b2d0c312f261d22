"""Ranks against GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine import job
from fsdp_doctor.engine.devices import counted
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.launch import Launch
from fsdp_doctor.subjects.scheduler import Scheduler

VARIABLE = "CUDA_VISIBLE_DEVICES"
ONE_STEP = frozenset(("srun", "mpirun"))
"""Launchers that may give each rank other GPUs than this shell has."""


@check("GPU006", Row.START, needs=(Gpus,), uses=(*job.USES, Environment), tags=("gpu", "launch"))
def too_few_gpus(facts: Facts, options: Options) -> Iterator[Finding]:
    """More ranks are started on this node than it has GPUs.

    What: compares the ranks per node (--nproc, the launch command, or the running job) with the GPUs that
        CUDA would show. A rank count left to the launcher ("gpu", "auto") always fits.
    Why: each rank of an FSDP job needs a GPU of its own. The surplus ranks stop with "invalid device
        ordinal", or share a GPU and NCCL refuses with "Duplicate GPU detected".
    Fix: start as many ranks as there are GPUs, or make the hidden GPUs visible.
    Sources: torchrun documentation (--nproc-per-node); NCCL "Duplicate GPU detected".
    """
    gpus, launch, scheduler = facts[Gpus], facts.find(Launch), facts.find(Scheduler)
    visible, has = _visible(facts, gpus, launch), len(gpus.present)
    planned = options.nproc if options.nproc is not None else (launch.nproc_per_node if launch else None)
    if planned is None and launch is not None and launch.nproc_spec in ("gpu", "auto"):
        yield ok(f"the launcher starts one rank for each of {counted(visible)}")
        return
    source = "--nproc" if options.nproc is not None else "the launch command"
    if planned is None:
        planned, source = scheduler.local_world_size if scheduler is not None else None, "LOCAL_WORLD_SIZE"
        if planned is None:
            yield ok(f"{counted(visible)} visible; the number of ranks is not given")
            return
        if scheduler is not None and (scheduler.local_rank or 0) < visible < planned and visible < has:
            yield skip(f"this rank sees {visible} of {has} GPUs; the other ranks may see theirs")
            return
        if scheduler is not None and scheduler.launcher not in ("torchrun", "env"):
            yield skip(f"{scheduler.launcher} may give each of {planned} ranks its own GPU")
            return
    if planned <= visible:
        yield ok(f"{planned} ranks, {counted(visible)}")
        return
    hidden = visible < has
    say = warn if launch is not None and launch.launcher in ONE_STEP and options.nproc is None else fail
    yield say(
        f"{planned} ranks on this node ({source}) and {counted(visible)}"
        + (f" of {has} left visible by {VARIABLE}" if hidden else ""),
        f"at most {visible} rank{'s' if visible != 1 else ''}, one per GPU",
        fix=Fix(
            f"Give {VARIABLE} {planned} GPUs, or start {visible} ranks"
            if hidden
            else f"Start {visible} ranks here and spread the others over further nodes",
            f"torchrun --nproc-per-node={visible} …" if visible else None,
        ),
    )


def _visible(facts: Facts, gpus: Gpus, launch: Launch | None) -> int:
    """GPUs that the job's processes will see: an assignment in front of the command overrides the shell."""
    env = facts.find(Environment)
    assigned = launch.environment.get(VARIABLE) if launch is not None else None
    shell = env.get(VARIABLE) if env is not None else None
    if assigned is None or assigned == shell:
        return job.visible_gpus(facts)
    entries = [e.strip() for e in assigned.split(",") if e.strip()]
    valid = 0
    for entry in entries:
        if entry.isascii() and entry.isdigit() and len(entry) < 9 and int(entry) >= len(gpus.devices):
            break
        if entry.startswith("-"):
            break
        valid += 1
    return valid
