"""Who differs in what it ran: sequence numbers, operations and sizes of the collectives in which ranks got stuck."""

from __future__ import annotations

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import with_activity
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.majority import minority
from fsdp_doctor.diagnosis.culprit.proofs import last_proof, proof
from fsdp_doctor.diagnosis.culprit.stuck import Group, Stuck, enqueued, groups
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS

EARLY = 5
"""Sequence numbers up to which a collective is one of the first."""
POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
"""Operations that each rank counts for itself, so that unequal numbers say nothing."""
ODD, BEHIND, DIVERGED, ONE_OF_TWO, ALL = 84, 80, 82, 78, 58
"""Scores: of a minority, of ranks that never came, of no majority, of one of two ranks, of a common stall."""


def candidates(view: View) -> list[Candidate]:
    """What the collectives of each process group say, the group that got stuck first first."""
    judged = (_judged(view, group) for group in groups(view))
    return [c for c in judged if c is not None]


def _judged(view: View, group: Group) -> Candidate | None:
    stuck = list(group.stuck.values())
    if len(stuck) < 2 or all(s.op in POINT_TO_POINT for s in stuck):
        return None
    if len({s.what for s in stuck}) == 1:
        return _behind(view, group, stuck[0]) or _all_stuck(view, group, stuck[0])
    if odd := minority({s.rank: s.what for s in stuck}):
        return _odd(view, group, odd)
    if (skipped := _skipped(group)) is not None:
        return skipped
    if (passed := _passed_by(group)) is not None:
        return passed
    if len(stuck) == 2 and (left := _left_loop(view, *stuck)) is not None:
        return _odd(view, group, frozenset((left,)), tie=True)
    return _diverged(view, group)


# all in the same collective


def _behind(view: View, group: Group, one: Stuck) -> Candidate | None:
    """Ranks that never issued the collective in which more others wait."""
    counts = enqueued(view, group.name)
    behind = frozenset(r for r, n in counts.items() if n < one.seq) - group.ranks
    if not behind or len(behind) >= len(group.ranks):
        return None
    conclusion = derived(
        codes.BEHIND,
        f"{rank_words(behind).capitalize()} never issued {one.words}, in which the others wait",
        "high",
        culprits=behind,
        victims=group.ranks,
        evidence=(*group.proofs, *last_proof(view, min(behind))),
    )
    return Candidate(BEHIND, with_activity(view, conclusion, behind), group.order, group.ranks | behind)


def _all_stuck(view: View, group: Group, one: Stuck) -> Candidate | None:
    """Nobody of the group is missing; of those who are, `silent` knows whether they were seen at all."""
    members = _members(view, one)
    if members - group.ranks or view.world is None:
        return None
    first = " at the first collective (connectivity)" if one.seq <= EARLY else ""
    conclusion = derived(
        codes.STALLED,
        f"All {len(group.ranks)} ranks entered the same collective, {one.words}, and none finished it: "
        f"the network or a device stalled{first}",
        "medium" if one.numel is not None else "low",
        victims=group.ranks,
        evidence=group.proofs,
        alternatives=(
            "a GPU hung in an earlier kernel",
            "a rank of another process group that is not in these logs",
        ),
    )
    return Candidate(ALL, conclusion, group.order, group.ranks)


def _members(view: View, one: Stuck) -> frozenset[int]:
    """Ranks of the group: all, unless the sizes of an all-gather say that it is smaller."""
    if "nout" in one.hit.fields and "ALLGATHER" in one.op and one.numel:
        size = int(one.hit.fields["nout"]) // one.numel
        if view.world and 1 < size < view.world:
            first = one.rank // size * size
            return frozenset(range(first, first + size))
    return view.expected


# in different ones


def _odd(view: View, group: Group, odd: frozenset[int], tie: bool = False) -> Candidate:
    """Some ranks differ from the majority, or one of two (`tie`) from what it should be in."""
    one = group.stuck[min(odd)]
    other = next(s for r, s in group.stuck.items() if r not in odd)
    code, difference = _difference(one, other, len(odd) > 1)
    conclusion = derived(
        code,
        f"{rank_words(odd).capitalize()} {difference}",
        "medium" if tie or one.numel is None else "high",
        culprits=odd,
        victims=(group.ranks | view.suffering) - odd,
        evidence=(proof(one.hit), proof(other.hit), *group.proofs, *last_proof(view, one.rank)),
    )
    return Candidate(
        ONE_OF_TWO if tie else ODD, with_activity(view, conclusion, odd), group.order, group.ranks
    )


def _difference(one: Stuck, other: Stuck, several: bool) -> tuple[str, str]:
    """The conclusion's code, and what the odd ranks did other than the rest."""
    are, they_are = ("are", "they are") if several else ("is", "it is")
    if (one.op, one.seq) == (other.op, other.seq):
        sizes = f"with {one.numel} elements, the others with {other.numel}"
        return codes.OTHER_SIZE, f"ran {one.op} #{one.seq} {sizes}"
    where = f"in {one.words}, the others in {other.words}"
    if one.is_scalar and not other.is_scalar:
        return codes.UNEVEN, f"left the common loop: {they_are} {where} (uneven batches or a branch)"
    if one.op == other.op and one.seq < other.seq:
        return codes.BEHIND, f"{are} behind: stuck {where}"
    return codes.OTHER_OPERATION, f"{are} {where}"


def _skipped(group: Group) -> Candidate | None:
    """Few ranks are already in the collective that follows for the others: they left out the one before it,
    and NCCL, which compares nothing, let theirs count for it.
    """
    numbers = sorted({s.seq for s in group.stuck.values()})
    if len(numbers) != 2 or numbers[1] != numbers[0] + 1:
        return None
    here, on = ([s for s in group.stuck.values() if s.seq == n] for n in numbers)
    following = {(s.op, s.numel) for s in on}
    ahead = [s for s in here if (s.op, s.numel) in following]
    left_out = {s.what: s for s in here if (s.op, s.numel) not in following}
    regular = [*on, *left_out.values()]
    fewer = all(
        a.enqueued is not None and r.enqueued is not None and a.enqueued < r.enqueued
        for a in ahead
        for r in regular
    )
    if (
        len(following) != 1
        or len(left_out) != 1
        or not ahead
        or 2 * len(ahead) >= len(group.stuck)
        or not fewer
    ):
        return None
    odd, (one,) = frozenset(a.rank for a in ahead), left_out.values()
    conclusion = derived(
        codes.OTHER_OPERATION,
        f"{rank_words(odd).capitalize()} left out {one.words}: {'they are' if len(odd) > 1 else 'it is'} in "
        f"{ahead[0].op}, which the others run after it",
        "high",
        why="NCCL compares neither sizes nor kinds: what these ranks ran instead was taken for the collective "
        f"that they left out. They enqueued fewer collectives than the others. {CONCLUSIONS[codes.OTHER_OPERATION].why}",
        culprits=odd,
        victims=group.ranks - odd,
        evidence=group.proofs,
    )
    return Candidate(ODD, conclusion, group.order, group.ranks)


def _passed_by(group: Group) -> Candidate | None:
    """Ranks that enqueued equally far, of which some are through with what others still wait in: the programs
    went the same way, and what does not fit came before. NCCL compares nothing, and matches what comes next.
    """
    stuck = group.stuck.values()
    least, most = (f(stuck, key=lambda s: s.seq) for f in (min, max))
    if least.seq == most.seq or any(s.enqueued is None or s.enqueued < most.seq for s in stuck):
        return None
    through = frozenset(s.rank for s in stuck if s.seq > least.seq)
    waiting = group.ranks - through
    conclusion = derived(
        codes.DIVERGED,
        f"{rank_words(through).capitalize()} went past {least.words}, in which {rank_words(waiting)} still "
        f"{'wait' if len(waiting) > 1 else 'waits'}: a collective at or before #{least.seq} had another size, type or kind on some rank",
        "medium",
        why=f"All of them enqueued {most.seq} collectives or more, so no rank left the loop; NCCL compares "
        "neither sizes nor kinds, so that a mismatch shows only in what comes after it.",
        victims=group.ranks,
        evidence=group.proofs,
        alternatives=(f"the kernel of #{least.seq} hangs on {rank_words(waiting)}",),
        record_next=(
            "the Flight Recorder's dumps of all ranks, which show each size, type and call site",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares every collective before it starts",
        ),
    )
    return Candidate(DIVERGED, conclusion, group.order, group.ranks)


def _left_loop(view: View, one: Stuck, two: Stuck) -> int | None:
    """Of two ranks the one that already went on: in a scalar reduction, or in a save that the other is not in."""
    if one.is_scalar != two.is_scalar:
        return one.rank if one.is_scalar else two.rank
    saving = [s.rank for s in (one, two) if view.phase_of(s.rank) == phases.SAVE]
    return saving[0] if len(saving) == 1 else None


def _diverged(view: View, group: Group) -> Candidate:
    """No majority tells who is wrong."""
    kinds: dict[tuple[int, str, int | None], list[Stuck]] = {}
    for stuck in group.stuck.values():
        kinds.setdefault(stuck.what, []).append(stuck)
    words = "; ".join(
        f"{rank_words(s.rank for s in kinds[kind])}: {kinds[kind][0].words}"
        for kind in sorted(kinds, key=str)
    )
    where = "; ".join(
        f"rank {r} in {phases.frame_words(own)}" for r in sorted(group.stuck) if (own := view.own_frame_of(r))
    )
    conclusion = derived(
        codes.DIVERGED,
        f"The ranks ran different collectives and no majority tells who is wrong: {words}",
        "medium",
        why=CONCLUSIONS[codes.DIVERGED].why + (f" They stood: {where}." if where else ""),
        evidence=group.proofs,
    )
    return Candidate(DIVERGED, conclusion, group.order, group.ranks)
