"""What a rank was doing while the others waited, and what that makes of a conclusion: row, reason, title."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.candidate import row_of
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Conclusion, Remedy
from fsdp_doctor.subjects.incident import Frame
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS

BUSY = (phases.DATA, phases.LOAD, phases.COMPILE)
"""Phases in which a rank may take so long that the others give up."""


def in_save(conclusion: Conclusion, frames: Iterable[Frame]) -> Conclusion:
    """The conclusion with the row of a save, where this stack is in one."""
    return replace(conclusion, row="save") if phases.of_frames(frames) == phases.SAVE else conclusion


def with_activity(view: View, conclusion: Conclusion, odd: Iterable[int]) -> Conclusion:
    """Where the first of the odd ranks stood, and the row and fix of a save where it was saving."""
    rank = min(odd, default=None)
    if rank is None:
        return conclusion
    conclusion = replace(conclusion, why=f"{_stood(view, rank)}{conclusion.why}")
    phase = view.phase_of(rank)
    if phase == phases.SAVE:
        return _saved_by_some(conclusion)
    if phase == phases.EVAL:
        return replace(conclusion, title=f"{conclusion.title}, in evaluation (validation)")
    if phase in BUSY:
        return replace(conclusion, title=f"{conclusion.title} (it was busy with: {phase})")
    return conclusion


def _stood(view: View, rank: int) -> str:
    if own := phases.own_frame(view.frames_of(rank)):
        return f"Rank {rank} stood in {phases.frame_words(own)}. "
    if said := view.last_words(rank):
        return f"The last words of rank {rank}: “{said}”. "
    return ""


def _saved_by_some(conclusion: Conclusion) -> Conclusion:
    kind = CONCLUSIONS[codes.SAVE_ON_SOME]
    return replace(
        conclusion,
        code=kind.code,
        title=f"{conclusion.title}, while it saves a checkpoint that not all ranks save",
        row=row_of(kind.code),
        why=f"{conclusion.why} {kind.why}",
        fixes=(Remedy(kind.fix, kind.command), *conclusion.fixes),
        explained=tuple(dict.fromkeys((kind.code, *conclusion.explained))),
    )
