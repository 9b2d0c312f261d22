"""What the command line of `check` asks for, with the configuration's values."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.join_options import Joining, joining
from fsdp_doctor.cli.probe_job import job_of
from fsdp_doctor.cli.sources import interpreter
from fsdp_doctor.engine.options import Profile
from fsdp_doctor.probe.forecast import Job


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for beyond the common options."""

    profile: Profile
    nproc: int | None
    nodes: int | None
    recording: tuple[Path, ...] | None
    python: str | None
    ckpt: str | None
    script: Path | None
    fix: bool
    yes: bool
    allow_mixed_gpus: bool
    force: bool
    joining: Joining
    job: Job | None
    words: tuple[str, ...]


def request_of(settings: Settings, own: dict[str, object]) -> Request:
    """The command's own options with the configuration's values. Raises `click.UsageError`."""
    profile, nproc, ckpt, recorded = own["profile"], own["nproc"], own["ckpt"], own["recorded"]
    python, script, nodes, words = own["python"], own["script"], own["nodes"], own["launch_command"]
    assert isinstance(words, tuple) and isinstance(recorded, tuple)
    request = Request(
        profile=Profile(profile) if profile else settings.config.profile or Profile.STANDARD,
        nproc=nproc if isinstance(nproc, int) else settings.config.nproc,
        nodes=nodes if isinstance(nodes, int) else None,
        recording=recorded or None,
        python=python if isinstance(python, str) else None,
        ckpt=ckpt if isinstance(ckpt, str) else None,
        script=script if isinstance(script, Path) else None,
        fix=bool(own["fix"]),
        yes=bool(own["yes"]),
        allow_mixed_gpus=bool(own["allow_mixed_gpus"]),
        force=bool(own["force"]),
        joining=joining(own),
        job=job_of(own, nproc * nodes if isinstance(nproc, int) and isinstance(nodes, int) else None),
        words=tuple(words),
    )
    if request.yes and not request.fix:
        raise click.UsageError("--yes belongs to --fix")
    if request.job is not None and (request.recording is not None or request.profile is Profile.QUICK):
        unmeasured = "--from" if request.recording is not None else "--profile quick"
        raise click.UsageError(f"--units needs a probe of this machine, which {unmeasured} leaves out")
    if request.recording is None:
        ckpt = request.ckpt or settings.config.ckpt
        python = None if request.python is None else interpreter(request.python)
        return replace(request, ckpt=os.path.abspath(ckpt) if ckpt else None, python=python)
    if request.fix:
        raise click.UsageError("--fix changes this machine; it cannot go with --from")
    if request.python is not None:
        raise click.UsageError("--python asks this machine; a recording holds the answers of its own Python")
    if request.ckpt is not None and not posixpath.isabs(request.ckpt):
        raise click.UsageError("--ckpt with --from is a path on the recorded machine and must be absolute")
    return request
