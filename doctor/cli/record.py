"""`fsdp-doctor record`: what the checks need from this machine, without secrets, to be judged elsewhere."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdp_doctor.cli.common import Settings, common
from fsdp_doctor.cli.join_options import joining, joining_options, place
from fsdp_doctor.cli.output import CannotAnswer
from fsdp_doctor.cli.progress import Waiting, attend, watched
from fsdp_doctor.cli.reporting import answer
from fsdp_doctor.cli.sources import ask_machine, interpreter
from fsdp_doctor.facts.collect import KINDS
from fsdp_doctor.facts.recording import NotSaved, Saved, contents, refuse_existing, write
from fsdp_doctor.facts.redact import REDACTED
from fsdp_doctor.facts.source import Source
from fsdp_doctor.ranks.context import Alone

if TYPE_CHECKING:
    from fsdp_doctor.cli.joining import Joined

BUDGET = 60.0
INCOMPLETE = 3
GRACE, GRACE_SHARE = 5.0, 0.3
"""Seconds, and part of the time at most, that are kept for putting the recording together."""
WRITING, WRITING_SHARE = 1.0, 0.1
"""The same for writing it."""


@click.command("record", short_help="Record what the checks need, to judge it elsewhere.")
@common("text", "json", deadline=True)
@click.option("--python", metavar="EXE", help="The Python that training uses, where it is another one.")
@click.option("--ckpt", metavar="DIR", help="Where checkpoints go.")
@joining_options
@click.argument("out", metavar="OUT[.zip]", type=click.Path(path_type=Path))
def command(settings: Settings, python: str | None, ckpt: str | None, out: Path, **own: object) -> int:
    """Record what the checks need from this machine into a new folder, or an archive if OUT ends in .zip.

    Values that look like secrets are replaced. `fsdp-doctor check --from OUT` judges it on any machine.
    Under a launcher rank 0 writes what all ranks recorded.
    """
    began = click.get_current_context().obj
    assert isinstance(began, float)
    where = place(joining(own), launched=False)
    if isinstance(where, Alone) or where.leads:
        _refuse(out)
    named = ckpt or settings.config.ckpt
    checkpoint = os.path.abspath(named) if named else None
    exe = None if python is None else interpreter(python)
    if isinstance(where, Alone):
        left = max(began + (settings.deadline or BUDGET + GRACE) - time.monotonic(), 0.0)
        patience = max(left - min(GRACE, GRACE_SHARE * left), 0.1)
        until = time.monotonic() + left - min(WRITING, WRITING_SHARE * left)
        with closing(ask_machine(KINDS, patience, exe, checkpoint)) as source:
            files: Mapping[str, bytes] = of_one_rank(_recorded(source, checkpoint, until))
        return _write(files, out, settings)
    from fsdp_doctor.cli.joining import Joined

    with Joined(
        where, joining(own), began=began, budget=BUDGET, deadline=settings.deadline, record=True
    ) as joined:
        patience = joined.judge_until - time.monotonic()
        until = min(time.monotonic() + patience + GRACE, joined.reports_until)
        with closing(ask_machine(KINDS, max(patience, 0.1), exe, checkpoint)) as source:
            own_files = _recorded(source, checkpoint, until, joined)
        if not joined.leads:
            return joined.hand_over(own_files)
        files, problems = joined.recordings(own_files)
        code = _write(files, out, settings, problems)
        joined.finish(code)
        return code


def _refuse(out: Path) -> None:
    """Refuse a place that cannot take it before the machine is asked. Raises `click.UsageError`."""
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {out.absolute().parent}")
    try:
        refuse_existing(out)
    except NotSaved as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise CannotAnswer(f"cannot write {out}: {error.strerror or error}") from None


def _write(files: Mapping[str, bytes], out: Path, settings: Settings, problems: tuple[str, ...] = ()) -> int:
    """Write the recording and say what is in it; a rank that is missing makes it incomplete."""
    try:
        saved = write(files, out)
    except NotSaved as error:
        if isinstance(error.__cause__, OSError):
            raise CannotAnswer(str(error)) from None
        raise click.UsageError(str(error)) from None
    redacted, missing = redactions(files), not_recorded(files)
    data: dict[str, object] = {
        "path": str(saved.path),
        "files": saved.files,
        "bytes": saved.size,
        "redacted": redacted,
        "not_recorded": missing,
        "problems": list(problems),
    }
    code = answer("record", data, _text(saved, redacted, missing, settings, problems), settings)
    return INCOMPLETE if problems else code


def _recorded(
    source: Source, checkpoint: str | None, until: float, joined: Joined | None = None
) -> Mapping[str, bytes]:
    """The contents of the recording; ends at `until` (monotonic) even where the machine does not answer."""
    waiting = Waiting(None if joined is None else joined.journal.mark)
    files: dict[str, bytes] = {}
    errors: list[Exception] = []

    def work() -> None:
        try:
            files.update(contents(watched(source, waiting), checkpoint=checkpoint))
        except Exception as error:  # handed to the thread that reports it
            errors.append(error)

    thread = threading.Thread(target=work, name="record", daemon=True)
    thread.start()

    def done(timeout: float) -> bool:
        thread.join(timeout)
        return not thread.is_alive()

    if not attend(done, waiting, until, quiet=joined is not None and not joined.leads):
        raise CannotAnswer(f"nothing was recorded: the deadline came while {waiting.words()}")
    if errors:
        raise errors[0]
    return files


def of_one_rank(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The recording without the size of the job: ranks that nobody asked are not ranks that are missing."""
    manifest = json.loads(files["manifest.json"]) | {"world_size": None}
    return {**files, "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode()}


def redactions(files: Mapping[str, bytes]) -> dict[str, int]:
    """File -> how many values were replaced in it."""
    mark = REDACTED.encode()
    return {name: raw.count(mark) for name, raw in files.items() if mark in raw}


def not_recorded(files: Mapping[str, bytes]) -> dict[str, str]:
    """What the manifest says is missing -> why."""
    told = json.loads(files["manifest.json"]).get("not_recorded", {})
    return {str(k): str(v).removeprefix(f"{k}: ") for k, v in told.items()} if isinstance(told, dict) else {}


def _text(
    saved: Saved,
    redacted: Mapping[str, int],
    missing: Mapping[str, str],
    settings: Settings,
    problems: tuple[str, ...],
) -> str:
    from fsdp_doctor.report.layout import Page

    page = Page(settings.style())
    page.paragraph(
        [(f"wrote {saved.path}: {saved.files} files, {saved.size / 1024:.0f} KiB", "bold")], hang=2
    )
    total = sum(redacted.values())
    where = f" in {', '.join(redacted)}" if redacted else ""
    page.paragraph([(f"{total} {'value' if total == 1 else 'values'} redacted{where}", "")], hang=2)
    for name, reason in missing.items():
        page.paragraph([(f"not recorded: {name}: {reason}", "yellow")], hang=2)
    for problem in problems:
        page.paragraph([(problem, "yellow")], hang=2)
    page.paragraph([(f"judge it on any machine: fsdp-doctor check --from {saved.path}", "")], hang=2)
    return page.text()
