"""What the user named and nobody could judge; each makes the verdict incomplete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fsdp_doctor.cli.judging import Judgement
from fsdp_doctor.cli.sources import Subjects
from fsdp_doctor.engine.spec import CheckSpec
from fsdp_doctor.report.describe import numbers
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.stack import Stack
from fsdp_doctor.subjects.storage import Storage

SCRIPT_FAMILY = "SCR"


class Named(Protocol):
    """The things that a command line can name."""

    @property
    def nproc(self) -> int | None:
        """Ranks per node."""

    @property
    def python(self) -> str | None:
        """An interpreter."""

    @property
    def ckpt(self) -> str | None:
        """The checkpoint folder."""

    @property
    def script(self) -> Path | None:
        """The training script."""


def by_name(
    asked: Named, judgement: Judgement, subjects: Subjects, checks: tuple[CheckSpec, ...]
) -> Iterator[str]:
    """One line for each thing that was asked for and not judged, and each answer that came too late."""
    said = list(_named(asked, judgement, subjects, checks))
    yield from said
    if judgement.facts is not None:
        facts = (judgement.facts.fact(k) for c in checks for k in (*c.needs, *c.uses))
        late = dict.fromkeys(f.reason for f in facts if isinstance(f, Unknown) and f.late)
        yield from (reason for reason in late if not any(reason in line for line in said))


def _named(
    asked: Named, judgement: Judgement, subjects: Subjects, checks: tuple[CheckSpec, ...]
) -> Iterator[str]:
    yield from _unreadable(judgement)
    seen = {*judgement.ranks, *(u.rank for u in judgement.unreadable)}
    late = [r for r in subjects.expected if r not in seen]
    if judgement.stopped_at is not None and judgement.judged_ranks and late:
        yield f"{'rank' if len(late) == 1 else 'ranks'} {numbers(late)}: the deadline came before"
    if judgement.unfinished:
        checks_words = "1 check" if judgement.unfinished == 1 else f"{judgement.unfinished} checks"
        yield f"{checks_words}: the deadline came while {judgement.stopped_at}"
    if asked.script is not None:
        yield from _script(asked.script, checks)
    facts = judgement.facts
    if facts is None:
        return
    wanted = {k for c in checks for k in (*c.needs, *c.uses)}
    if asked.ckpt is not None and Storage in wanted:
        yield from _checkpoint(asked.ckpt, facts)
    if asked.python is not None and Stack in wanted and isinstance(facts.fact(Stack), Unknown):
        yield f"--python {asked.python}: {_reason(facts, Stack)}"
    gpus = facts.fact(Gpus)
    if asked.nproc is not None and Gpus in wanted and isinstance(gpus, Unknown) and not gpus.absent:
        yield f"--nproc {asked.nproc}: the GPUs could not be counted: {gpus.reason}"


def _unreadable(judgement: Judgement) -> Iterator[str]:
    """Ranks that cannot be read, those with the same reason together."""
    reasons: dict[str, list[int]] = {}
    for bad in judgement.unreadable:
        reasons.setdefault(bad.reason.removeprefix(f"ranks/{bad.rank}: "), []).append(bad.rank)
    for reason, ranks in reasons.items():
        yield f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}: {reason}"


def _checkpoint(path: str, facts: Facts) -> Iterator[str]:
    storage = facts.find(Storage)
    if storage is None:
        yield f"--ckpt {path}: {_reason(facts, Storage)}"
    elif storage.checkpoint is None:
        yield f"--ckpt {path}: nothing is known of it"
    elif storage.checkpoint.error is not None and storage.checkpoint.space is None:
        yield f"--ckpt {path}: {storage.checkpoint.error}"


def _script(path: Path, checks: tuple[CheckSpec, ...]) -> Iterator[str]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            yield f"--script {path}: not a regular file"
            return
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        yield f"--script {path}: {error.strerror or error}"
        return
    if not any(c.family == SCRIPT_FAMILY for c in checks):
        yield f"--script {path}: none of the checks that ran judges scripts"


def _reason(facts: Facts, kind: type[object]) -> str:
    fact = facts.fact(kind)
    return fact.reason if isinstance(fact, Unknown) else ""
