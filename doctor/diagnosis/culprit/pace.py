"""Who is slow, and whether all became slow, by the step times that ranks print."""

from __future__ import annotations

from statistics import median

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import unique_proofs
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import StepPoint
from fsdp_doctor.tables import log_conclusions as codes

RATIO = 2.0
"""Between the odd rank and the others."""
EVEN = 1.25
"""Between the others, at most."""
MIN_RANKS = 3
GROWN = 3.0
EARLY_POINTS, LATE_POINTS = 10, 5
FEWEST = 9
"""Steps from which three at the beginning and three at the end are compared."""


def candidates(view: View) -> list[Candidate]:
    """A straggler, or a slow-down of all."""
    timed = {
        r: [p for p in points if p.seconds is not None and p.seconds > 0] for r, points in view.steps.items()
    }
    timed = {r: points for r, points in timed.items() if len(points) >= 2}
    found = _straggler(view, timed)
    return [c for c in (found, None if found else _all_slower(view, timed)) if c is not None]


def _late(points: list[StepPoint]) -> float:
    tail = points[-2:] if len(points) < 8 else points[-4:]
    return median(p.seconds or 0.0 for p in tail)


def _straggler(view: View, timed: dict[int, list[StepPoint]]) -> Candidate | None:
    if len(timed) < MIN_RANKS:
        return None
    late = {r: _late(points) for r, points in timed.items()}
    for rank, own in late.items():
        others = [v for r, v in late.items() if r != rank]
        if max(others) > EVEN * min(others):
            continue
        usual = median(others)
        if own * RATIO <= usual and usual > RATIO * _before(timed, rank):
            why = (
                f"The others' steps grew to {usual:.3g} s while rank {rank} reports {own:.3g} s: it "
                "never waits, so the others wait for it."
            )
        elif own >= RATIO * usual:
            why = f"Rank {rank} reports {own:.3g} s per step, the others {usual:.3g} s."
        else:
            continue
        conclusion = derived(
            codes.STRAGGLER,
            f"Rank {rank} is the straggler that slows the others down ({own:.3g} s per step against "
            f"{usual:.3g} s)",
            "medium",
            why=f"{why} {codes.CONCLUSIONS[codes.STRAGGLER].why}",
            culprits=(rank,),
            victims=tuple(sorted(r for r in timed if r != rank)),
            evidence=unique_proofs(
                _point(r, points[-1]) for r, points in ((rank, timed[rank]), *timed.items())
            ),
        )
        return Candidate(68, conclusion, 0, frozenset((rank,)))
    return None


def _before(timed: dict[int, list[StepPoint]], rank: int) -> float:
    """The others' usual step time at the start."""
    return median(
        p.seconds or 0.0
        for r, points in timed.items()
        if r != rank
        for p in points[: max(1, len(points) // 2)][:1]
    )


def _point(rank: int, point: StepPoint) -> Proof:
    return Proof(
        point.origin.file,
        point.origin.line,
        rank,
        point.origin.time,
        f"step {point.step}: {point.seconds:.3g} s per step",
    )


def _all_slower(view: View, timed: dict[int, list[StepPoint]]) -> Candidate | None:
    slower: list[tuple[float, int]] = []
    untagged = [p for p in view.incident.steps if p.rank is None and p.seconds]
    series = dict(timed) if timed else ({-1: untagged} if untagged else {})
    for rank, points in series.items():
        if len(points) < FEWEST:
            return None
        skipped = 2 if len(points) >= EARLY_POINTS + LATE_POINTS else 1
        early = median(
            p.seconds or 0.0 for p in points[skipped : skipped + min(EARLY_POINTS, len(points) // 3)]
        )
        tail = [p.seconds or 0.0 for p in points[-min(LATE_POINTS, len(points) // 3) :]]
        if early <= 0 or min(tail) < GROWN * early:
            return None
        slower.append((median(tail) / early, rank))
    if not slower:
        return None
    ratio, rank = max(slower)
    points = series[rank]
    conclusion = derived(
        codes.SLOWED_DOWN,
        f"Steps became {ratio:.1f} times slower"
        + (f" on {rank_words(timed)}" if timed else "")
        + ", on no rank alone",
        "medium",
        victims=tuple(sorted(timed)),
        evidence=unique_proofs(
            Proof(
                p.origin.file,
                p.origin.line,
                p.rank,
                p.origin.time,
                f"step {p.step}: {p.seconds:.3g} s per step",
            )
            for p in (points[2], points[-1])
        ),
    )
    return Candidate(50, conclusion)
