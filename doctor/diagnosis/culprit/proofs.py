"""Lines, exits and steps as evidence."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import Exit, Hit, Origin

MAX_PROOFS = 6


def at(origin: Origin, rank: int | None, text: str) -> Proof:
    """What a text says of a rank, with the place where it stands."""
    return Proof(origin.file, origin.line, rank, origin.time, text)


def proof(hit: Hit) -> Proof:
    """A line as evidence."""
    return at(hit.origin, hit.origin.rank, hit.text)


def last_proof(view: View, *ranks: int) -> tuple[Proof, ...]:
    """The last lines of ranks as evidence, of those that have one."""
    lines = (view.last[r] for r in ranks if r in view.last)
    return tuple(at(line.origin, line.rank, line.text) for line in lines)


def exit_proof(entry: Exit) -> Proof:
    """An exit as evidence."""
    words = f"{entry.reporter or 'exit'}: exit code {entry.code}" + (f", {entry.told}" if entry.told else "")
    return at(entry.origin, entry.rank, words)


def unique_proofs(proofs: Iterable[Proof], most: int = MAX_PROOFS) -> tuple[Proof, ...]:
    """Without repetitions, at most `most`."""
    return tuple({(p.file, p.line, p.text): p for p in proofs}.values())[:most]
