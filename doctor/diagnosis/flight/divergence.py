"""The first sequence number at which ranks enqueued different things, and which of them are the odd ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_doctor.diagnosis.flight.history import HOLE, Group, History, Job

REACH = 8
"""Operations that one rank may have skipped or added before its later ones are looked for in the others'."""
CONTEXT = 12
"""Operations before the difference by which an earlier step is recognised."""
RESEMBLING = 3
"""The least of them."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Ranks in one group that enqueued different operations under the same sequence number."""

    sequence: int
    sides: tuple[tuple[int, ...], ...]
    """Ranks that did the same, the most first."""
    odd: tuple[int, ...]
    """Those at fault; empty where it cannot be told."""
    usual: tuple[int, ...]
    """Those that did the right thing."""
    by: str
    """How the odd ones were told: majority, history, or ""."""
    shift: int = 0
    """Of the odd ranks against the usual ones: n > 0 they added n operations, n < 0 they left out -n."""


def diverge(job: Job, group: Group) -> Divergence | None:
    """The first difference between members, None where they agree on all that more than one still holds."""
    variants: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for rank, history in group.histories.items():
        variants[history.first, history.keys.tobytes()].append(rank)
    if len(variants) < 2:
        return None
    ordered = sorted(variants.values(), key=len, reverse=True)
    histories = [group.histories[ranks[0]] for ranks in ordered]
    firsts = [s for h in histories[1:] if (s := _first_difference(histories[0], h)) is not None]
    if not firsts:
        return None
    sequence = min(firsts)
    sides: dict[int, list[int]] = defaultdict(list)
    for ranks, history in zip(ordered, histories, strict=True):
        place = sequence - history.first
        if 0 <= place < len(history.keys) and history.keys[place] != HOLE:
            sides[history.keys[place]] += ranks
    found = sorted((tuple(sorted(s)) for s in sides.values()), key=lambda s: (-len(s), s))
    if len(found) < 2:
        return None
    return _judge(group, sequence, tuple(found))


def _first_difference(one: History, other: History) -> int | None:
    low, high = max(one.first, other.first), min(one.last, other.last)
    if low > high:
        return None
    mine = one.keys[low - one.first : high - one.first + 1]
    theirs = other.keys[low - other.first : high - other.first + 1]
    if mine == theirs:
        return None
    return next(
        (low + n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b and HOLE not in (a, b)),
        None,
    )


def _judge(group: Group, sequence: int, sides: tuple[tuple[int, ...], ...]) -> Divergence:
    tied = [s for s in sides if len(s) == len(sides[0])]
    usual: tuple[int, ...] = sides[0]
    by = "majority"
    if len(tied) > 1:
        usual, by = (), ""
        foretold = _foretold([group.histories[s[0]] for s in tied], sequence)
        if foretold is not None:
            usual, by = tied[foretold], "history"
    odd = tuple(sorted(r for s in sides if s is not usual for r in s)) if usual else ()
    shift = 0
    if odd:
        shifts = {_shift(group.histories[usual[0]], group.histories[r], sequence) for r in odd[:REACH]}
        shift = shifts.pop() if len(shifts) == 1 else 0
    return Divergence(sequence, sides, odd, usual, by, shift)


def _shift(usual: History, odd: History, sequence: int) -> int:
    """How many operations more (or less) the odd rank's sequence has at the difference.

    Decided by the longest agreement of what follows; with nothing following it stays 0.
    """
    mine = odd.keys[sequence - odd.first :]
    theirs = usual.keys[sequence - usual.first :]
    scores = {0: _agreement(mine[1:], theirs[1:])}
    for n in range(1, REACH + 1):
        scores[n] = _agreement(mine[n:], theirs)
        scores[-n] = _agreement(mine, theirs[n:])
    best = max(scores, key=lambda n: (scores[n], n == 0, -abs(n)))
    return best if scores[best] else 0


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the agreement if it reaches to the end of the shorter one, else 0."""
    count = min(len(one), len(other))
    return count if list(one[:count]) == list(other[:count]) else 0


def _foretold(histories: Sequence[History], sequence: int) -> int | None:
    """Which of several ranks went on as earlier steps did; None where the past does not tell.

    In the part that all have in common, places are looked for that were preceded by the same operations as
    the difference is; what followed there is what was to be expected here.
    """
    past = histories[0]
    common = list(past.keys[: sequence - past.first])
    nexts = [h.keys[sequence - h.first] for h in histories]
    for length in range(min(CONTEXT, len(common) - 1), RESEMBLING - 1, -1):
        context = common[-length:]
        followers = Counter(
            common[n + length] for n in range(len(common) - length) if common[n : n + length] == context
        )
        votes = [followers[k] for k in nexts]
        if sum(votes) and max(votes) == sum(votes):
            return votes.index(max(votes))
    return None


def call_sites_part(
    job: Job, group: Group, ranks: Sequence[int], reference: int, until: int
) -> tuple[int, int] | None:
    """Where a rank that is behind left out operations that look like their neighbours: (sequence, count).

    Its call sites from there on are those of the reference rank `count` operations later, to the end of what
    both hold. None where the stacks were not recorded or tell nothing.
    """
    if not ranks:
        return None
    behind, other = group.histories.get(ranks[0]), group.histories.get(reference)
    if behind is None or other is None:
        return None
    low = max(behind.first, other.first)
    mine = _sites(job, ranks[0], behind, low, behind.last)
    theirs = _sites(job, reference, other, low, other.last)
    if len(set(theirs)) < 2:
        return None
    same = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if same is None:
        return None
    for count in range(1, REACH + 1):
        rest = mine[same:]
        if rest and rest == theirs[same + count : same + count + len(rest)]:
            return low + same, count
    return None


def _sites(job: Job, rank: int, history: History, low: int, high: int) -> list[tuple[int, int]]:
    entries = job.dumps[rank].entries
    return [
        (history.keys[s - history.first], entries.site[i])
        for s in range(low, high + 1)
        if (i := history.at(s)) is not None
    ]
