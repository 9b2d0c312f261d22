"""Saved output of jobs whose cause is known: what `diagnose` says, beside the truth and torchrun's own word."""

from __future__ import annotations

from functools import cache

import pytest

from fixtures.jobs.judge import ON_A_GPU, OVER_NCCL, SAVED, Judged, judge_all, page
from fixtures.jobs.kinds import BY_KIND

pytestmark = pytest.mark.timeout(300)
ENOUGH = 0.95


@cache
def judged() -> tuple[Judged, ...]:
    return judge_all()


def test_every_kind_is_saved() -> None:
    assert {p.parent.name for p in SAVED.glob("*/truth.json")} == set(BY_KIND)


def test_cause_and_rank_are_named() -> None:
    wrong = {j.kind: j.problems for j in judged() if j.problems}
    assert 1 - len(wrong) / len(judged()) >= ENOUGH, wrong


def test_jobs_on_a_gpu() -> None:
    assert {j.kind: j.problems for j in judge_all(ON_A_GPU) if j.problems} == {}


def test_jobs_over_nccl() -> None:
    assert {j.kind: j.problems for j in judge_all(OVER_NCCL) if j.problems} == {}


def test_no_alarm_without_a_failure() -> None:
    assert all(not j.problems for j in judged() if j.kind.startswith("healthy"))


def test_ranks_that_only_waited_are_not_blamed() -> None:
    """An answer may name nobody; a confident one must not name a wrong rank."""
    for j in judged():
        wanted = {*j.truth["culprits"], *j.truth["also_culprits"]}  # type: ignore[misc]
        assert j.confidence != "high" or set(j.culprits) <= wanted, (j.kind, j.culprits)


def test_torchruns_first_failure_is_often_one_that_waited() -> None:
    asked = [j for j in judged() if j.torchrun_right is not None]
    torchrun = sum(bool(j.torchrun_right) for j in asked)
    doctor = sum(set(j.culprits) == set(j.truth["culprits"]) for j in asked)  # type: ignore[call-overload]
    assert torchrun < doctor


def test_the_page_says_so() -> None:
    """The figures of docs/diagnosed-jobs.md are those of today's answers."""
    written = (SAVED.parents[2] / "docs" / "diagnosed-jobs.md").read_text(encoding="utf-8")
    figures = [line for line in page(judged()).splitlines() if line.startswith("- ")]
    assert [line for line in written.splitlines() if line.startswith("- ")] == figures
