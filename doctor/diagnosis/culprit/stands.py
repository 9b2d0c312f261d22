"""Whose stack differs: the ranks that stand in a collective wait for those that do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Conclusion, Proof
from fsdp_doctor.subjects.incident import Frame, RecorderConclusion, ThreadStack
from fsdp_doctor.tables import log_conclusions as codes

COLLECTIVE = re.compile(
    r"distributed_c10d|all_?gather|all_?reduce|reduce_scatter|broadcast|barrier|_wait_for_computation|wait_stream|"
    r"unshard|work\.wait|synchronize|all_to_all|gather_object",
    re.I,
)
RECORDER_CODES = {"stalled": codes.STALLED}
RECORDER_SCORE = {"missing": 87, "mismatch": 88, "unfinished": 76, "stalled": 59}


def in_collective(stack: tuple[Frame, ...]) -> bool:
    """Whether a stack waits in a collective: one of its innermost frames is one."""
    return any(COLLECTIVE.search(f"{f.file} {f.function} {f.code}") for f in stack[-6:])


def candidates(view: View) -> list[Candidate]:
    """What stacks and the Flight Recorder say."""
    found = [c for r in view.incident.recorder if (c := _recorded(view, r)) is not None]
    stacks = {s.rank: s for s in view.incident.stacks if s.main and s.rank is not None and s.frames}
    ways = (_odd(view, stacks), _elsewhere(view, stacks), _all_same(view, stacks))
    return [*found, *(c for c in ways if c is not None)]


Stacks = Mapping[int, ThreadStack]
"""The main thread of each rank."""


def _odd(view: View, stacks: Stacks) -> Candidate | None:
    """Ranks that are in no collective while others are."""
    waiting = frozenset(r for r, s in stacks.items() if in_collective(s.frames))
    odd = frozenset(stacks) - waiting
    if not odd or not waiting or len(odd) > max(1, len(waiting)) or len(stacks) < 2:
        return None
    one: ThreadStack = stacks[min(odd)]
    own = phases.own_frame(one.frames)
    phase = phases.of_frames(one.frames)
    title = f"{rank_words(odd).capitalize()} stands in {phases.frame_words(own)} while {rank_words(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in a collective"
    conclusion = derived(
        codes.ODD_STACK,
        title + (f" (it is busy with: {phase})" if phase else ""),
        "high",
        culprits=tuple(sorted(odd)),
        victims=tuple(sorted(waiting)),
        evidence=unique_proofs(_proof(s) for s in (one, *(stacks[r] for r in sorted(waiting)))),
    )
    return Candidate(81, _saving(conclusion, one.frames), 0, odd)


def _sites(stacks: Stacks) -> dict[tuple[str, int | None], frozenset[int]]:
    """Where ranks stand in the program -> which; nothing unless all of them wait in a collective."""
    found: dict[tuple[str, int | None], frozenset[int]] = {}
    if len(stacks) < 2 or not all(in_collective(s.frames) for s in stacks.values()):
        return {}
    for rank, stack in stacks.items():
        own = phases.own_frame(stack.frames)
        place = (own.file, own.line) if own is not None else ("", None)
        found[place] = found.get(place, frozenset()) | {rank}
    return found


def _elsewhere(view: View, stacks: Stacks) -> Candidate | None:
    """All wait in collectives, some in another than the most."""
    sites = _sites(stacks)
    if len(sites) < 2:
        return None
    most = max(sites.values(), key=len)
    odd = frozenset(stacks) - most
    if len(odd) >= len(most):
        return None
    one, other = stacks[min(odd)], stacks[min(most)]
    conclusion = derived(
        codes.ODD_STACK,
        f"{rank_words(odd).capitalize()} waits in another collective than the others: in "
        f"{phases.frame_words(phases.own_frame(one.frames))}, {rank_words(most)} in "
        f"{phases.frame_words(phases.own_frame(other.frames))}",
        "high",
        culprits=tuple(sorted(odd)),
        victims=tuple(sorted(most)),
        evidence=unique_proofs(_proof(stacks[r]) for r in (*sorted(odd), *sorted(most))),
    )
    return Candidate(77, _saving(conclusion, one.frames), 0, odd)


def _all_same(view: View, stacks: Stacks) -> Candidate | None:
    """All stand in the same collective: stacks accuse nobody."""
    sites = _sites(stacks)
    if len(sites) != 1 or view.consequences:
        return None
    where = phases.frame_words(phases.own_frame(next(iter(stacks.values())).frames))
    missing = view.expected - frozenset(stacks)
    conclusion = derived(
        codes.STALLED,
        f"{rank_words(stacks).capitalize()} all wait in the same collective, called in {where}",
        "low",
        victims=tuple(sorted(stacks)),
        evidence=unique_proofs(_proof(s) for s in stacks.values()),
        alternatives=("a rank whose stack is not here" + (f": {rank_words(missing)}" if missing else ""),),
    )
    return Candidate(40, conclusion, 0, frozenset(stacks))


def _proof(stack: ThreadStack) -> Proof:
    origin = stack.origin
    return Proof(origin.file, origin.line, stack.rank, origin.time, phases.frame_words(stack.frames[-1]))


def _saving(conclusion: Conclusion, frames: tuple[Frame, ...]) -> Conclusion:
    """The row of a save, where a stack is in one."""
    return replace(conclusion, row="save") if phases.of_frames(frames) == phases.SAVE else conclusion


def _told(view: View, said: RecorderConclusion, told: Conclusion, score: int) -> Candidate:
    """A conclusion of the recorder's own, with its proofs and fix."""
    conclusion = told
    if said.ranks and phases.of_frames(said.frames) == phases.SAVE:
        conclusion = replace(conclusion, row="save")
    return Candidate(40 if told.confidence == "low" else score, conclusion, 0, frozenset(said.ranks))


def _recorded(view: View, said: RecorderConclusion) -> Candidate | None:
    score = RECORDER_SCORE.get(said.kind)
    if score is None:
        return None
    if said.conclusion is not None:
        return _told(view, said, said.conclusion, score)
    code = RECORDER_CODES.get(said.kind, codes.RECORDER)
    own = phases.own_frame(said.frames)
    why = codes.CONCLUSIONS[code].why + (f" It stood in {phases.frame_words(own)}." if own else "")
    conclusion = derived(
        code,
        said.words[:1].upper() + said.words[1:],
        said.confidence,
        why=why,
        culprits=said.ranks,
        victims=tuple(r for r in said.members if r not in said.ranks),
        evidence=unique_proofs(
            Proof(
                o.file,
                o.line,
                o.rank,
                o.time,
                f"process group {said.group}: {said.operation or 'collective'} #{said.sequence}",
            )
            for o in said.evidence
        ),
    )
    phase = phases.of_frames(said.frames)
    if phase == phases.SAVE and said.ranks:
        conclusion = replace(conclusion, row="save")
    if said.confidence == "low":
        score = 40
    return Candidate(score, conclusion, 0, frozenset(said.ranks))
