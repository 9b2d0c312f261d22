"""The newest checkpoint of a run."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.checkpoint_run import Candidate, RunFolder
from fsdp_doctor.subjects.fact import Facts


@check("CKP090", Row.LOAD, needs=(RunFolder,), tags=("checkpoint",))
def newest_whole(facts: Facts, options: Options) -> Iterator[Finding]:
    """The newest checkpoint of the run is not whole.

    What: the checkpoints of a run's folder from the newest on, until one is whole.
    Why: a job that was killed while it saved leaves a folder that looks like a checkpoint; a script that
        resumes from the highest number then fails on every rank, or loads old values without a word.
    Fix: resume from the newest whole one, and remove or move away the broken ones.
    Sources: torch/distributed/checkpoint/filesystem.py (finish writes .metadata last, by rename).
    """
    run = facts[RunFolder]
    latest = run.latest
    for candidate in run.newer:
        yield warn(
            f"{_named(candidate)} is not whole: {candidate.why}",
            "a finished save",
            subject=Subject(path=candidate.path),
            fix=None if latest is None else Fix(f"Resume from {latest.path}"),
        )
    if latest is None:
        count = len(run.candidates)
        found = f"none of {count} checkpoints is whole" if count else "no checkpoint in it"
        yield fail(f"{found}", "one whole checkpoint", subject=Subject(path=run.path))
    elif not run.newer:
        yield ok(f"the newest checkpoint, {_named(latest)}, is whole", subject=Subject(path=latest.path))
    named = run.tracked
    if latest is not None and named and _other(named, latest):
        yield warn(
            f"the file {run.tracker} names {named}, the newest whole checkpoint is {_named(latest)}",
            "a tracker file that names the newest whole checkpoint",
            subject=Subject(path=run.path),
        )


def _named(candidate: Candidate) -> str:
    return candidate.path.rstrip("/").rsplit("/", 1)[-1]


def _other(tracked: str, latest: Candidate) -> bool:
    """Megatron's tracker holds a number, DeepSpeed's a folder's name."""
    if tracked.isdecimal():
        return latest.step is not None and int(tracked) != latest.step
    return tracked.rstrip("/").rsplit("/", 1)[-1] != _named(latest)
