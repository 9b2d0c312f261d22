"""What `check` adds to the judged facts: a short probe, and whether the checkpoint in --ckpt loads."""

from __future__ import annotations

from dataclasses import replace

from fsdp_doctor.cli.check_judging import Judged, measuring_ends
from fsdp_doctor.cli.check_request import Request
from fsdp_doctor.cli.common import Settings

CHECKPOINTS = "CKP"


def with_probe(found: Judged, request: Request, settings: Settings, began: float) -> Judged:
    """What was found, and what a short probe of this machine measures."""
    from fsdp_doctor.cli.short_probe import short_probe

    probed = short_probe(
        settings,
        found.judgement.facts,
        request.nproc,
        request.python,
        measuring_ends(request, settings, began),
        request.force,
        request.job,
    )
    return replace(found, probed=probed, unjudged=(*found.unjudged, *probed.unjudged))


def with_checkpoint(
    found: Judged, request: Request, settings: Settings, began: float, ranks: int | None = None
) -> Judged:
    """What was found, and whether the checkpoint in --ckpt loads on the ranks of the job."""
    if request.recording is not None or request.ckpt is None:
        return found
    if not any(c.family == CHECKPOINTS for c in found.checks):
        return found
    from fsdp_doctor.cli.ckpt.preflight import resumed
    from fsdp_doctor.cli.ckpt.target import launched

    world, source = ranks, "this job"
    if world is None and found.launch is not None:
        world, source = launched(found.launch), "the launch command"
    if world is None and request.nproc is not None:
        world, source = request.nproc * (request.nodes or 1), "--nproc and --nodes"
    until = measuring_ends(request, settings, began)
    held = resumed(request.ckpt, world, source, found.judgement.facts, settings, until)
    if held is None:
        return found
    return replace(with_notes(found, *held.notes), resumed=held, unjudged=(*found.unjudged, *held.unjudged))


def with_notes(found: Judged, *notes: str) -> Judged:
    """What was found, with further notes."""
    return replace(found, subjects=replace(found.subjects, notes=(*found.subjects.notes, *notes)))
