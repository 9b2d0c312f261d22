"""The checkpoint that a run will resume from, as part of `check --ckpt DIR`."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

from fsdp_doctor.ckpt.latest import find
from fsdp_doctor.ckpt.read import read
from fsdp_doctor.cli.ckpt.judged import figures, headline, judge_loading, unjudged
from fsdp_doctor.cli.ckpt.on_disk import checks_of
from fsdp_doctor.cli.common import Settings
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.runner import run_checks
from fsdp_doctor.findings import Result
from fsdp_doctor.subjects.checkpoint_run import RunFolder
from fsdp_doctor.subjects.fact import Facts, Known
from fsdp_doctor.subjects.load_target import LoadTarget
from fsdp_doctor.subjects.scheduler import Identity
from fsdp_doctor.subjects.storage import Storage

LEAST = 1.0
"""Seconds that must be left for reading anything."""


def _identity() -> dict[type[object], Known[object]]:
    return {Identity: Known(Identity(socket.gethostname(), None, None))}


@dataclass(frozen=True, slots=True)
class Resumed:
    """What is said of it: results of the CKP checks, figures, notes, and what could not be judged."""

    results: tuple[Result, ...] = ()
    data: dict[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()


def resumed(
    path: str, world_size: int | None, source: str, facts: Facts | None, settings: Settings, until: float
) -> Resumed | None:
    """Judge the checkpoint in a folder, or the newest whole one of a run's folder; None where there is none.

    The folder is looked into only where the storage facts say that it answers. `until` is monotonic.
    """
    storage = facts.find(Storage) if facts is not None else None
    folder = storage.checkpoint if storage is not None else None
    if folder is None or folder.error is not None or not folder.exists or folder.is_dir is False:
        return None
    if until - time.monotonic() < LEAST:
        return Resumed(unjudged=(f"--ckpt {path}: the deadline came before its checkpoint was read",))
    try:
        run = find(path, max(until - time.monotonic(), LEAST))
    except OSError as error:
        return Resumed(unjudged=(f"--ckpt {path}: {error.strerror or error}",))
    if not run.candidates:
        return None
    newest = run.latest or run.candidates[0]
    index = read(newest.path, max(until - time.monotonic(), LEAST))
    newer = run_checks(
        checks_of(settings, ("CKP090",)), Facts({RunFolder: Known(run), **_identity()}), Options()
    )
    loading, results = judge_loading(index, LoadTarget(world_size=world_size, world_source=source), settings)
    passed_over = f", and {len(run.newer)} newer that cannot be resumed from" if run.newer else ""
    where = f"{newest.path}{passed_over}" if newest.path != path else path
    return Resumed(
        (*results, *newer),
        {
            "path": newest.path,
            "newer": [{"path": c.path, "why": c.why} for c in run.newer],
            **figures(loading),
        },
        (f"checkpoint {where}: {headline(loading)}",),
        unjudged(loading),
    )
