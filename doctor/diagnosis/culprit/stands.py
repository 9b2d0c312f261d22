"""Whose stack differs: the ranks that stand in a collective wait for those that do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import in_save
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.majority import minority
from fsdp_doctor.diagnosis.culprit.proofs import at
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import Frame, ThreadStack
from fsdp_doctor.tables import log_conclusions as codes

COLLECTIVE = re.compile(
    r"distributed_c10d|all_?gather|all_?reduce|reduce_scatter|broadcast|barrier|_wait_for_computation|wait_stream|"
    r"unshard|work\.wait|synchronize|all_to_all|gather_object",
    re.I,
)
INNERMOST = 6
"""Frames at the end of a stack of which one shows that it waits: further out stands who called whom."""

Stacks = Mapping[int, ThreadStack]
"""The main thread of each rank."""


def candidates(view: View) -> list[Candidate]:
    """What the stacks of at least two ranks say."""
    stacks = {s.rank: s for s in view.incident.stacks if s.main and s.rank is not None and s.frames}
    if len(stacks) < 2:
        return []
    waiting = frozenset(r for r, s in stacks.items() if _in_collective(s.frames))
    if waiting < frozenset(stacks):
        found = _outside(stacks, waiting)
    else:
        found = _elsewhere(stacks) or _all_same(view, stacks)
    return [found] if found is not None else []


def _in_collective(stack: tuple[Frame, ...]) -> bool:
    return any(COLLECTIVE.search(f"{f.file} {f.function} {f.code}") for f in stack[-INNERMOST:])


def _outside(stacks: Stacks, waiting: frozenset[int]) -> Candidate | None:
    """Ranks that are in no collective while as many others or more are."""
    odd = frozenset(stacks) - waiting
    if len(odd) > len(waiting):
        return None
    frames = stacks[min(odd)].frames
    phase = phases.of_frames(frames)
    conclusion = derived(
        codes.ODD_STACK,
        f"{rank_words(odd).capitalize()} stands in {_where(stacks, odd)} while {rank_words(waiting)} "
        f"{'wait' if len(waiting) > 1 else 'waits'} in a collective"
        + (f" (it is busy with: {phase})" if phase else ""),
        "high",
        culprits=odd,
        victims=waiting,
        evidence=(_proof(stacks[r]) for r in (min(odd), *sorted(waiting))),
    )
    return Candidate(81, in_save(conclusion, frames), ranks=odd)


def _elsewhere(stacks: Stacks) -> Candidate | None:
    """All wait in collectives, some in another than the most."""
    odd = minority({r: _site(s) for r, s in stacks.items()})
    if not odd:
        return None
    most = frozenset(stacks) - odd
    conclusion = derived(
        codes.ODD_STACK,
        f"{rank_words(odd).capitalize()} waits in another collective than the others: in "
        f"{_where(stacks, odd)}, {rank_words(most)} in {_where(stacks, most)}",
        "high",
        culprits=odd,
        victims=most,
        evidence=(_proof(stacks[r]) for r in (*sorted(odd), *sorted(most))),
    )
    return Candidate(77, in_save(conclusion, stacks[min(odd)].frames), ranks=odd)


def _all_same(view: View, stacks: Stacks) -> Candidate | None:
    """All stand in the same collective: stacks accuse nobody."""
    if len({_site(s) for s in stacks.values()}) > 1 or view.consequences:
        return None
    missing = view.expected - frozenset(stacks)
    conclusion = derived(
        codes.STALLED,
        f"{rank_words(stacks).capitalize()} all wait in the same collective, called in "
        f"{_where(stacks, stacks)}",
        "low",
        victims=stacks,
        evidence=(_proof(s) for s in stacks.values()),
        alternatives=("a rank whose stack is not here" + (f": {rank_words(missing)}" if missing else ""),),
    )
    return Candidate(40, conclusion, ranks=frozenset(stacks))


def _site(stack: ThreadStack) -> tuple[str, int | None]:
    own = phases.own_frame(stack.frames)
    return (own.file, own.line) if own is not None else ("", None)


def _where(stacks: Stacks, ranks: Iterable[int]) -> str:
    return phases.frame_words(phases.own_frame(stacks[min(ranks)].frames))


def _proof(stack: ThreadStack) -> Proof:
    return at(stack.origin, stack.rank, phases.frame_words(stack.frames[-1]))
