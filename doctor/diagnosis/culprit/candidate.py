"""A possible cause, and how one is made of what several ranks say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof, Remedy
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible cause: `score` (0 to 100) ranks it against the others, `order` says how early it came."""

    score: float
    conclusion: Conclusion
    order: int = 0
    ranks: frozenset[int] = frozenset()
    time: float | None = None
    own: bool = False
    """Rests on an error that a rank printed itself."""


def derived(
    code: str,
    title: str,
    confidence: str,
    *,
    why: str | None = None,
    row: str | None = None,
    culprits: Iterable[int] = (),
    victims: Iterable[int] = (),
    host: str | None = None,
    evidence: Iterable[Proof] = (),
    fixes: tuple[Remedy, ...] = (),
    alternatives: tuple[str, ...] = (),
    record_next: tuple[str, ...] = (),
    explained: tuple[str, ...] = (),
) -> Conclusion:
    """A conclusion of `tables.log_conclusions`, with its row, reason and fix unless they are given."""
    kind = CONCLUSIONS[code]
    return Conclusion(
        code=code,
        title=title,
        row=row or row_of(code),
        confidence=confidence,
        why=kind.why if why is None else why,
        culprits=tuple(sorted(culprits)),
        host=host,
        victims=tuple(sorted(victims)),
        evidence=unique_proofs(evidence),
        fixes=fixes or (Remedy(kind.fix, kind.command),),
        alternatives=alternatives,
        record_next=record_next,
        explained=explained or (code,),
    )


def row_of(code: str) -> str | None:
    """The row of the failure table to which a derived conclusion belongs."""
    row = CONCLUSIONS[code].row
    return row.value if row is not None else None
