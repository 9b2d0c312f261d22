"""Who differs in what it ran: sequence numbers, operations and sizes of the collectives in which ranks got stuck."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fsdp_doctor.diagnosis import phases
from fsdp_doctor.diagnosis.culprit.activity import with_activity
from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.majority import minority
from fsdp_doctor.diagnosis.culprit.proofs import last_proof, proof, unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import Hit
from fsdp_doctor.tables import log_conclusions as codes
from fsdp_doctor.tables.log_conclusions import CONCLUSIONS

TIMEOUT = "LOG101"
STATUS = "LOG102"
DETAIL = "LOG115"
SCALAR = 64
"""Elements up to which a tensor is a flag, a count or a metric."""
EARLY = 5
"""Sequence numbers up to which a collective is one of the first."""
POINT_TO_POINT = ("SEND", "RECV", "COALESCED")
FSDP_OPS = (
    "_ALLGATHER_BASE",
    "_REDUCE_SCATTER_BASE",
    "ALLGATHER_BASE",
    "ALLGATHER_COALESCED",
    "REDUCE_SCATTER",
)


@dataclass(frozen=True, slots=True)
class Stuck:
    """Where one rank got stuck in one process group."""

    rank: int
    group: str
    seq: int
    op: str
    numel: int | None
    hit: Hit
    enqueued: int | None = None
    began: float | None = None

    @property
    def what(self) -> tuple[int, str, int | None]:
        """What has to be the same on all ranks."""
        return (self.seq, self.op, self.numel)

    @property
    def words(self) -> str:
        """`_ALLGATHER_BASE #20911 with 6291456 elements`."""
        return f"{self.op or 'a collective'} #{self.seq}" + (
            f" with {self.numel} elements" if self.numel is not None else ""
        )


def stuck_ranks(view: View) -> dict[str, dict[int, Stuck]]:
    """Group -> rank -> the earliest collective in which it timed out."""
    told = _groups_of(view)
    groups: dict[str, dict[int, Stuck]] = {}
    status: dict[tuple[str, int], int] = {}
    for hit in view.hits:
        if hit.code == STATUS and hit.origin.rank is not None:
            status.setdefault((group_of(hit), hit.origin.rank), int(hit.fields["enq"]))
    for hit in view.hits:
        rank = hit.origin.rank
        if hit.code != TIMEOUT or rank is None or "seq" not in hit.fields:
            continue
        group = group_of(hit) or told.get((rank, hit.fields["seq"]), "")
        own = [v for (g, r), v in status.items() if r == rank and (g == group or not group)]
        numel = int(hit.fields["nin"]) if "nin" in hit.fields else None
        timed = hit.origin.time is not None and "ran" in hit.fields
        began = (hit.origin.time or 0.0) - int(hit.fields["ran"]) / 1000 if timed else None
        entry = Stuck(
            rank,
            group,
            int(hit.fields["seq"]),
            hit.fields.get("op", ""),
            numel,
            hit,
            own[0] if own else None,
            began,
        )
        old = groups.setdefault(group, {}).get(rank)
        if old is None or entry.seq < old.seq:
            groups[group][rank] = entry
    return groups


def group_of(hit: Hit) -> str:
    """The process group of a line: its own number, since several groups may have one name; "" if it is not told."""
    return hit.fields.get("pg_id") or hit.fields.get("pg", "")


def _groups_of(view: View) -> dict[tuple[int, str], str]:
    """(rank, sequence number) -> group: the line of the timeout does not tell it, those after it do."""
    return {
        (h.origin.rank, number): group_of(h)
        for h in reversed(view.hits)
        if h.origin.rank is not None and group_of(h) and (number := h.fields.get("seq"))
    }


def candidates(view: View) -> list[Candidate]:
    """What the collectives say, the likeliest first."""
    found: list[Candidate] = []
    if (detail := _detail(view)) is not None:
        found.append(detail)
    if (aborted := _aborted(view)) is not None:
        found.append(aborted)
    groups = stuck_ranks(view)
    names = sorted(
        groups, key=lambda g: min((s.began for s in groups[g].values() if s.began is not None), default=0.0)
    )
    judged = (_group(view, groups[name], groups) for name in names)
    return [*found, *(c for c in judged if c is not None)]


# torch's own comparison


def _detail(view: View) -> Candidate | None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares ranks in pairs: the rank in the minority is the odd one."""
    hits = [h for h in view.hits if h.code == DETAIL]
    if not hits:
        return None
    prints: dict[int, tuple[str, str, str]] = {}
    for hit in hits:
        f = hit.fields
        for side in ("a", "b"):
            if side not in f:
                continue
            op = f.get(f"op{side}", "")
            prints.setdefault(int(f[side]), (op, f.get(f"sh{side}", ""), f.get(f"dt{side}", "")))
    votes = Counter(prints.values())
    odd = minority(prints)
    words = "; ".join(
        f"{rank_words(r for r, p in prints.items() if p == what)}: {_print_words(what)}" for what in votes
    )
    ops = {p[0] for p in prints.values()}
    code = codes.OTHER_SIZE if len(ops) == 1 else codes.OTHER_OPERATION
    if not odd:
        code = codes.DIVERGED
    title = (
        f"{rank_words(odd).capitalize()} ran another collective than the others: {words}"
        if odd
        else f"The ranks ran different collectives: {words}"
    )
    conclusion = derived(
        code,
        title,
        "high",
        culprits=tuple(sorted(odd)),
        victims=tuple(sorted(view.suffering - odd)),
        evidence=unique_proofs(proof(h) for h in hits),
        explained=(code, DETAIL),
    )
    return Candidate(90, with_activity(view, conclusion, odd), hits[0].order, frozenset(prints))


def _print_words(what: tuple[str, str, str]) -> str:
    op, shape, dtype = what
    sizes = [int(n) for n in re.findall(r"\d+", shape)]
    many = f" ({prod(sizes)} elements)" if len(sizes) > 1 else ""
    return op + (f" of [{shape}]{many}" if shape else "") + (f" {dtype}" if dtype else "")


def _aborted(view: View) -> Candidate | None:
    """The process that receives more than it expects is aborted by gloo. Where all others stand in the same gather
    of FSDP's parameters, whose size is the same everywhere, the one that aborted ran something else.
    """
    hits = [h for h in view.hits if h.code == "LOG160"]
    aborted = frozenset(e.rank for e in view.exits if e.code in (-6, 134) and e.rank is not None)
    others = view.expected - aborted
    if not hits or len(aborted) != 1 or len(others) < 2:
        return None
    stacks = [view.frames_of(r) for r in others]
    sites = {(f.file, f.line) for s in stacks if (f := phases.own_frame(s)) is not None}
    gathers = all(any("_fsdp_" in f.file or "unshard" in f.function for f in s) for s in stacks)
    if len(sites) != 1 or not all(stacks) or not gathers:
        return None
    rank = min(aborted)
    conclusion = derived(
        codes.OTHER_OPERATION,
        f"Rank {rank} ran another collective while {rank_words(others)} gathered the parameters of an FSDP unit",
        "medium",
        culprits=(rank,),
        victims=tuple(sorted(others)),
        evidence=unique_proofs((*(proof(h) for h in hits), *last_proof(view, rank))),
        explained=(codes.OTHER_OPERATION, "LOG160"),
    )
    return Candidate(72, with_activity(view, conclusion, aborted), hits[0].order, view.expected)


# the watchdog's lines


def _group(
    view: View, stuck: dict[int, Stuck], groups: Mapping[str, Mapping[int, Stuck]]
) -> Candidate | None:
    ranks = frozenset(stuck)
    order = min(s.hit.order for s in stuck.values())
    proofs = unique_proofs(proof(s.hit) for s in sorted(stuck.values(), key=lambda s: s.rank))
    kinds = {s.what for s in stuck.values()}
    if len(ranks) < 2 or all(s.op in POINT_TO_POINT for s in stuck.values()):
        return None  # sends and receives are counted by each rank for itself
    if len(kinds) == 1:
        return _same(view, stuck, ranks, order, proofs, groups)
    odd = minority({r: s.what for r, s in stuck.items()})
    if odd:
        return _odd(view, stuck, odd, order, proofs)
    if (crossed := _passed_by(view, stuck, order, proofs)) is not None:
        return crossed
    if len(ranks) == 2 and (left := _left_loop(view, stuck)) is not None:
        return _odd(view, stuck, frozenset((left,)), order, proofs, tie=True)
    words = "; ".join(
        f"{rank_words(s.rank for s in stuck.values() if s.what == k)}: {next(s.words for s in stuck.values() if s.what == k)}"
        for k in sorted(kinds, key=str)
    )
    where = "; ".join(
        f"rank {r} in {phases.frame_words(phases.own_frame(view.frames_of(r)))}"
        for r in sorted(stuck)
        if view.frames_of(r)
    )
    conclusion = derived(
        codes.DIVERGED,
        f"The ranks ran different collectives and no majority tells who is wrong: {words}",
        "medium",
        why=CONCLUSIONS[codes.DIVERGED].why + (f" They stood: {where}." if where else ""),
        victims=(),
        evidence=proofs,
    )
    return Candidate(82, conclusion, order, ranks)


def _odd(
    view: View,
    stuck: Mapping[int, Stuck],
    odd: frozenset[int],
    order: int,
    proofs: tuple[object, ...],
    tie: bool = False,
) -> Candidate:
    """Some ranks differ from the majority."""
    one = stuck[min(odd)]
    other = next(s for r, s in stuck.items() if r not in odd)
    who, be = rank_words(odd).capitalize(), "is" if len(odd) == 1 else "are"
    if one.op == other.op and one.seq == other.seq:
        code, title = (
            codes.OTHER_SIZE,
            f"{who} ran {one.op} #{one.seq} with {one.numel} elements, the others with {other.numel}",
        )
    elif _is_scalar(one) and not _is_scalar(other):
        code = codes.UNEVEN
        title = f"{who} left the common loop: {'it is' if len(odd) == 1 else 'they are'} in {one.words}, the others in {other.words} (uneven batches or a branch)"
    elif one.seq < other.seq and one.op == other.op:
        code, title = codes.BEHIND, f"{who} {be} behind: stuck in {one.words}, the others in {other.words}"
    else:
        code, title = codes.OTHER_OPERATION, f"{who} {be} in {one.words}, the others in {other.words}"
    conclusion = derived(
        code,
        title,
        "medium" if tie or one.numel is None else "high",
        culprits=tuple(sorted(odd)),
        victims=tuple(sorted((frozenset(stuck) | view.suffering) - odd)),
        host=view.incident.job.hosts.get(min(odd)),
        evidence=unique_proofs((proof(one.hit), proof(other.hit), *proofs, *last_proof(view, min(odd)))),  # type: ignore[arg-type]
    )
    return Candidate(78 if tie else 84, with_activity(view, conclusion, odd), order, frozenset(stuck))


def _passed_by(
    view: View, stuck: Mapping[int, Stuck], order: int, proofs: tuple[Proof, ...]
) -> Candidate | None:
    """Ranks that enqueued equally far, of which some are through with what others still wait in: the programs
    went the same way, and what does not fit came before. NCCL compares nothing, and matches what comes next.
    """
    least, most = (f(stuck.values(), key=lambda s: s.seq) for f in (min, max))
    if least.seq == most.seq or any(s.enqueued is None or s.enqueued < most.seq for s in stuck.values()):
        return None
    through = frozenset(r for r, s in stuck.items() if s.seq > least.seq)
    waiting = frozenset(stuck) - through
    conclusion = derived(
        codes.DIVERGED,
        f"{rank_words(through).capitalize()} went past {least.words}, in which {rank_words(waiting)} still "
        f"waits: a collective at or before #{least.seq} had another size, type or kind on some rank",
        "medium",
        why=f"All of them enqueued {most.seq} collectives or more, so no rank left the loop; NCCL compares "
        "neither sizes nor kinds, so that a mismatch shows only in what comes after it.",
        victims=tuple(sorted(stuck)),
        evidence=proofs,
        alternatives=(f"the kernel of #{least.seq} hangs on {rank_words(waiting)}",),
        record_next=(
            "the Flight Recorder's dumps of all ranks, which show each size, type and call site",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares every collective before it starts",
        ),
    )
    return Candidate(82, conclusion, order, frozenset(stuck))


def _is_scalar(stuck: Stuck) -> bool:
    return (
        stuck.numel is not None
        and stuck.numel <= SCALAR
        and not stuck.op.startswith(("_ALLGATHER", "_REDUCE_SCATTER"))
    )


def _left_loop(view: View, stuck: Mapping[int, Stuck]) -> int | None:
    """Of two ranks the one that already went on: in a scalar reduction, or in a save that the other is not in."""
    one, two = stuck.values()
    if _is_scalar(one) != _is_scalar(two):
        return one.rank if _is_scalar(one) else two.rank
    saving = [s.rank for s in (one, two) if view.phase_of(s.rank) == phases.SAVE]
    return saving[0] if len(saving) == 1 else None


def _same(
    view: View,
    stuck: Mapping[int, Stuck],
    ranks: frozenset[int],
    order: int,
    proofs: tuple[object, ...],
    groups: Mapping[str, Mapping[int, Stuck]],
) -> Candidate | None:
    """All that timed out were in the same collective: those who are missing matter, or nobody is missing."""
    one = next(iter(stuck.values()))
    behind = frozenset(r for r, n in _enqueued(view, one.group).items() if n < one.seq and r not in ranks)
    if behind and len(behind) < len(ranks):
        conclusion = derived(
            codes.BEHIND,
            f"{rank_words(behind).capitalize()} never issued {one.words}, in which the others wait",
            "high",
            culprits=tuple(sorted(behind)),
            victims=tuple(sorted(ranks)),
            evidence=unique_proofs((*proofs, *last_proof(view, min(behind)))),  # type: ignore[arg-type]
        )
        return Candidate(80, with_activity(view, conclusion, behind), order, ranks | behind)
    members = _members(view, one)
    missing = members - ranks
    elsewhere = frozenset(r for g, s in groups.items() if s is not stuck for r in s)
    if missing - elsewhere:
        return None  # said by `absent`, which knows whether the missing were seen at all
    if not missing and view.world is not None and len(ranks) >= max(2, len(members)):
        first = one.seq <= EARLY
        title = f"All {len(ranks)} ranks entered the same collective, {one.words}, and none finished it: the network or a device stalled"
        conclusion = derived(
            codes.STALLED,
            title + (" at the first collective (connectivity)" if first else ""),
            "medium" if one.numel is not None else "low",
            victims=tuple(sorted(ranks)),
            evidence=unique_proofs(proofs),  # type: ignore[arg-type]
            alternatives=(
                "a GPU hung in an earlier kernel",
                "a rank of another process group that is not in these logs",
            ),
        )
        return Candidate(58, conclusion, order, ranks)
    return None


def _members(view: View, one: Stuck) -> frozenset[int]:
    """Ranks of the group: all, unless the sizes of an all-gather say that it is smaller."""
    if "nout" in one.hit.fields and "ALLGATHER" in one.op and one.numel:
        size = int(one.hit.fields["nout"]) // one.numel
        if view.world and 1 < size < view.world:
            return frozenset(range(one.rank // size * size, one.rank // size * size + size))
    return view.expected


def _enqueued(view: View, group: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for hit in view.hits:
        if (
            hit.code == STATUS
            and hit.origin.rank is not None
            and (not group or (group_of(hit) or group) == group)
        ):
            found.setdefault(hit.origin.rank, int(hit.fields["enq"]))
    return found
