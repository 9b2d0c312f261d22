"""Who is slow although all steps take equally long: the rank that works longer and waits less than others.

A step ends for all ranks with its last collective, so that the times of whole steps are equal. What tells is
what each rank did itself (forward, backward, data), or that one rank hardly waits: it comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import at
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.diagnosis.phase_times import WAIT, own_seconds
from fsdp_doctor.subjects.diagnosis import Proof
from fsdp_doctor.subjects.incident import StepPoint
from fsdp_doctor.tables import log_conclusions as codes

WARM_UP, STEADY = 2, 3
"""Steps that are left out, and the least that have to follow."""
LONGER = 1.3
"""Own time of a straggler against the others' median."""
LESS = 0.5
"""Time that a straggler waits against the others' median."""
EVEN = 1.2
"""Largest against smallest own time of the others."""
WORTH = 0.05
"""Of a step: a difference from which it matters."""
SCORE = 69


def candidates(view: View) -> list[Candidate]:
    """A straggler by its own time, by its waiting, or by how long its NCCL kernels spun."""
    steady = {r: p[WARM_UP:] for r, p in view.steps.items() if len(p) >= WARM_UP + STEADY}
    own = _medians({r: [own_seconds(p.parts) for p in points] for r, points in steady.items()})
    waits = _medians({r: [p.parts.get(WAIT) for p in points] for r, points in steady.items()})
    whole = max((p.seconds or 0.0 for points in steady.values() for p in points), default=0.0)
    slow = _slow(own, whole) or _least(waits, whole)
    if slow:
        return [_candidate(view, slow, own, waits, steady)]
    spins = view.incident.nccl_seconds
    slow = _least(spins, max(spins.values(), default=0.0))
    return [_candidate(view, slow, {}, spins, {})] if slow else []


def _medians(series: Mapping[int, list[float | None]]) -> dict[int, float]:
    known = {r: [v for v in values if v is not None] for r, values in series.items()}
    return {r: median(values) for r, values in known.items() if len(values) >= STEADY}


def _slow(own: Mapping[int, float], whole: float) -> frozenset[int]:
    """Ranks that work much longer than the others, which are even among each other."""
    if len(own) < 2:
        return frozenset()
    ordered = sorted(own.values())
    usual = ordered[(len(ordered) - 1) // 2]
    slow = frozenset(r for r, v in own.items() if v >= LONGER * usual and v - usual >= WORTH * whole)
    rest = [v for r, v in own.items() if r not in slow]
    return slow if slow and len(slow) <= len(rest) and max(rest) <= EVEN * min(rest) else frozenset()


def _least(waits: Mapping[int, float], whole: float) -> frozenset[int]:
    """The rank that waits much less than every other."""
    if len(waits) < 2:
        return frozenset()
    (rank, least), (_, next_least), *_ = sorted(waits.items(), key=lambda w: w[1])
    alone = least <= LESS * next_least and next_least - least >= 2 * WORTH * whole
    return frozenset((rank,)) if alone else frozenset()


def _candidate(
    view: View,
    slow: frozenset[int],
    own: Mapping[int, float],
    waits: Mapping[int, float],
    steady: Mapping[int, list[StepPoint]],
) -> Candidate:
    one = min(slow)
    others = [r for r in (own or waits) if r not in slow]
    figures = []
    if own and one in own:
        figures.append(f"works {own[one]:.3g} s itself, the others {median(own[r] for r in others):.3g} s")
    if one in waits and (known := [waits[r] for r in others if r in waits]):
        figures.append(f"waits {waits[one]:.3g} s for collectives, the others {median(known):.3g} s")
    who, does = rank_words(slow).capitalize(), "is the straggler" if len(slow) == 1 else "are the stragglers"
    ranks = (one, *(r for r in others if r in steady))
    conclusion = derived(
        codes.STRAGGLER,
        f"{who} {does} that the others wait for: in a step {'it' if len(slow) == 1 else 'each'} "
        + ", and ".join(figures),
        "medium",
        why=f"{_longer(slow, steady, others)}Steps take equally long everywhere, because each ends with a "
        "collective. " + codes.CONCLUSIONS[codes.STRAGGLER].why,
        culprits=slow,
        victims=others,
        evidence=(_proof(r, steady[r][-1]) for r in ranks if r in steady),
    )
    return Candidate(SCORE, conclusion, ranks=slow)


def _longer(slow: frozenset[int], steady: Mapping[int, list[StepPoint]], others: list[int]) -> str:
    """Which part of the step takes longer there."""
    one = min(slow)
    if one not in steady:
        return ""
    names = {n for p in steady[one] for n in p.parts if n != WAIT}
    more = {}
    for name in names:
        mine = [p.parts[name] for p in steady[one] if name in p.parts]
        theirs = [p.parts[name] for r in others for p in steady.get(r, ()) if name in p.parts]
        if mine and theirs:
            more[name] = median(mine) - median(theirs)
    name = max(more, key=lambda n: more[n], default="")
    return f"Most of the difference is in its {name}. " if name and more[name] > 0 else ""


def _proof(rank: int, point: StepPoint) -> Proof:
    parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in point.parts.items())
    return at(point.origin, rank, f"step {point.step}: {parts}")
