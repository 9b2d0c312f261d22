"""Who is slow, and whether all became slow, by the step times that ranks print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import at
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
"""Late against early steps, where all became slower."""
EARLY_POINTS, LATE_POINTS = 10, 5
FEWEST = 9
"""Steps from which three at the beginning and three at the end are compared."""

Series = Mapping[int, Sequence[StepPoint]]
"""Rank -> its steps that have a time."""


def candidates(view: View) -> list[Candidate]:
    """A straggler, or a slow-down of all."""
    timed = {r: _timed(points) for r, points in view.steps.items()}
    timed = {r: points for r, points in timed.items() if len(points) >= 2}
    found = _straggler(timed) or _all_slower(view, timed)
    return [found] if found is not None else []


def _timed(points: Sequence[StepPoint]) -> list[StepPoint]:
    return [p for p in points if p.seconds is not None and p.seconds > 0]


def _usual(points: Sequence[StepPoint]) -> float:
    return median(p.seconds or 0.0 for p in points)


# one rank


def _straggler(timed: Series) -> Candidate | None:
    """The one rank whose steps differ from those of all others, which are even among each other."""
    if len(timed) < MIN_RANKS:
        return None
    late = {r: _usual(points[-2:] if len(points) < 8 else points[-4:]) for r, points in timed.items()}
    for rank, own in late.items():
        others = [v for r, v in late.items() if r != rank]
        if max(others) > EVEN * min(others):
            continue
        usual = median(others)
        before = _usual([points[0] for r, points in timed.items() if r != rank])
        if own * RATIO <= usual and usual > RATIO * before:
            why = (
                f"The others' steps grew to {usual:.3g} s while rank {rank} reports {own:.3g} s: it never "
                "waits, "
                "so the others wait for it."
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
            victims=(r for r in timed if r != rank),
            evidence=(_proof(points[-1]) for points in (timed[rank], *timed.values())),
        )
        return Candidate(68, conclusion, ranks=frozenset((rank,)))
    return None


# all ranks


def _all_slower(view: View, timed: Series) -> Candidate | None:
    """The rank that slowed down most, where each did; lines without a rank count as one."""
    without_rank = _timed([p for p in view.incident.steps if p.rank is None])
    series = list(timed.values()) or ([without_rank] if without_rank else [])
    ratios = [_growth(points) for points in series]
    if not ratios or min(ratios) < GROWN:
        return None
    ratio = max(ratios)
    points = series[ratios.index(ratio)]
    where = f" on {rank_words(timed)}" if timed else ""
    conclusion = derived(
        codes.SLOWED_DOWN,
        f"Steps became {ratio:.1f} times slower{where}, on no rank alone",
        "medium",
        victims=timed,
        evidence=map(_proof, (points[2], points[-1])),
    )
    return Candidate(50, conclusion)


def _growth(points: Sequence[StepPoint]) -> float:
    """How many times longer the last steps take than early ones; 0 unless each of them takes much longer."""
    if len(points) < FEWEST:
        return 0.0
    first = 2 if len(points) >= EARLY_POINTS + LATE_POINTS else 1  # the first steps warm up
    early = _usual(points[first : first + min(EARLY_POINTS, len(points) // 3)])
    late = points[-min(LATE_POINTS, len(points) // 3) :]
    if min(p.seconds or 0.0 for p in late) < GROWN * early:
        return 0.0
    return _usual(late) / early


def _proof(point: StepPoint) -> Proof:
    return at(point.origin, point.rank, f"step {point.step}: {point.seconds:.3g} s per step")
