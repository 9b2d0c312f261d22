"""Words for GPUs that are out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_doctor.diagnosis import oom, phases
from fsdp_doctor.diagnosis.culprit.candidate import row_of
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import Words
from fsdp_doctor.subjects.diagnosis import Remedy
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS, OOM_AT_SAVE

MORE_ROOM = Remedy(
    "Let the doctor say what each change to sharding, precision, batch or checkpointing saves for this model",
    "fsdp-doctor dryrun --model … --batch … --world-size N",
)


def cuda(view: View, hits: Sequence[Hit], first: Hit, words: Words) -> Words:
    """What the figures say: fragmentation, other processes, a limit; and where in the step it happened."""
    report, phase = oom.report(first), view.phase_of_hit(first)
    says, advice = oom.sub_diagnosis(report, phase, oom.on_one_gpu(oom.report(h) for h in hits))
    title = words.title
    if "allocate" not in title and report.requested is not None:
        title += f": tried to allocate {oom.words(report.requested)}"
    words = replace(
        words,
        title=title,
        why="".join(f"{s[0].upper()}{s[1:]}. " for s in says) + words.why,
        fixes=(*map(Remedy, advice), MORE_ROOM) if advice else words.fixes,
    )
    return _at_save(words) if phase == phases.SAVE else words


def _at_save(words: Words) -> Words:
    kind = CONCLUSIONS[OOM_AT_SAVE]
    return replace(
        words,
        code=kind.code,
        title=f"Out of memory while saving: {words.title}",
        row=row_of(kind.code),
        fixes=(Remedy(kind.fix, kind.command), *words.fixes),
    )
