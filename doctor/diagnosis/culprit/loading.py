"""Whether steps wait for data, by the times that ranks print of a job that does not fail."""

from __future__ import annotations

from statistics import median

from fsdp_doctor.diagnosis.culprit.candidate import Candidate, derived
from fsdp_doctor.diagnosis.culprit.proofs import at
from fsdp_doctor.diagnosis.culprit.view import View
from fsdp_doctor.diagnosis.culprit.words import rank_words
from fsdp_doctor.subjects.incident import CONTEXT, StepPoint
from fsdp_doctor.tables import log_conclusions as codes

LARGE = 0.3
"""Share of a step from which waiting for data is worth a word."""
WARM_UP = 3
"""Steps at the start in which workers, caches and compilers warm up."""
STEADY = 10
"""Steps behind those that are needed."""
OFTEN = 0.6
"""Of the steady steps: those that wait. A stall now and then is another matter."""
SCORE = 70
"""Above that of a straggler, which it explains."""


def candidates(view: View) -> list[Candidate]:
    """Slow data loading; nothing where anything failed."""
    if view.failed_exits or any(h.kind != CONTEXT for h in view.hits):
        return []
    series: dict[int | None, list[StepPoint]] = {}
    for point in view.incident.steps:
        if point.data is not None:
            series.setdefault(point.rank, []).append(point)
    steady = {r: p[WARM_UP:] for r, p in series.items() if len(p) >= WARM_UP + STEADY}
    shares = {r: median(p.data or 0.0 for p in points) for r, points in steady.items()}
    waits = [
        r
        for r, points in steady.items()
        if shares[r] > LARGE and sum((p.data or 0.0) > LARGE for p in points) >= OFTEN * len(points)
    ]
    if not waits:
        return []
    worst = max(waits, key=lambda r: shares[r])
    ranks = sorted(r for r in waits if r is not None)
    alone = len(ranks) == 1 and len(steady) > 1
    where = f" on {rank_words(ranks)}" if ranks else ""
    conclusion = derived(
        codes.DATA_LOADING,
        f"Steps wait for data: {shares[worst]:.0%} of their time is data loading{where}",
        "medium",
        culprits=tuple(ranks) if alone else (),
        victims=tuple(sorted(r for r in steady if r is not None and r not in ranks)) if alone else (),
        evidence=(
            at(p.origin, p.rank, f"step {p.step}: {p.data or 0.0:.0%} of its time is data")
            for p in (steady[worst][0], steady[worst][len(steady[worst]) // 2], steady[worst][-1])
        ),
    )
    return [Candidate(SCORE, conclusion, ranks=frozenset(ranks))]
