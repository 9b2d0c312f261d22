"""What the probe's command line asks for."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.probe_job import job_of
from fsdp_doctor.cli.sources import interpreter
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.probe.forecast import DTYPE_BYTES, Job
from fsdp_doctor.probe.planning import DEFAULT_OPS, GLOO, NCCL, Effort, SizeError, parse_sizes, plan
from fsdp_doctor.subjects.probe import OPS, ProbePlan

LARGEST_UNIT = {NCCL: 2 << 30, GLOO: 16 << 20}
"""Bytes of units that are measured as they are; larger ones move at the rate of the largest size."""
DEEP_CPU, DEEP_GPU = "64K:64M", "64K:1G"


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
    job: Job | None = None
    """A job whose step is forecast; the sizes of its units are measured too."""

    def plan(self, backend: str, ranks: int, seconds: float | None) -> ProbePlan:
        """The plan for so many ranks; `seconds` bounds the whole."""
        return plan(
            backend,
            ranks,
            Effort.SHORT if self.profile is Profile.QUICK else Effort.FULL,
            ops=self.ops,
            sweep=self.sizes or _deep(self.profile, backend),
            units=(*self.units, *_units(self.job, backend)),
            pairs=self.pairs,
            seconds=seconds,
        )


def wish_of(settings: Settings, own: dict[str, object]) -> Wish:
    """The command's own options with the configuration's values. Raises `click.UsageError`."""
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
        job=job_of(own),
    )


def _units(job: Job | None, backend: str) -> tuple[int, ...]:
    """Bytes of a job's units to measure: the smallest, and the largest of which many move in a second."""
    if job is None:
        return ()
    width = DTYPE_BYTES[job.param_dtype]
    fitting = sorted({int(u * width) for u in job.units if u * width <= LARGEST_UNIT[backend]} - {0})
    return (fitting[0], fitting[-1]) if fitting else ()


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


def _deep(profile: Profile, backend: str) -> tuple[int, ...]:
    if profile is not Profile.DEEP:
        return ()
    return parse_sizes(DEEP_GPU if backend == NCCL else DEEP_CPU)
