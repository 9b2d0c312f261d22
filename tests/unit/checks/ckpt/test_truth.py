"""The doctor's answer for every cell that torch has answered, on the checkpoints that torch wrote."""

from __future__ import annotations

import json

import pytest

from fixtures.checkpoints import page
from fixtures.checkpoints import questions as asked
from fixtures.checkpoints.cells import cells
from fixtures.checkpoints.saved import index
from fsdp_doctor.ckpt.compat import assess
from fsdp_doctor.subjects.loading import Answer

QUESTIONS = tuple(asked.questions())


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.cell.name)
def test_agrees_with_torch(question: asked.Question) -> None:
    held = index(question.cell.save, question.cell.damage)
    assert not asked.disagreement(question, assess(held, question.target))


def test_every_cell_has_a_truth() -> None:
    truth = json.loads(asked.TRUTH.read_text(encoding="utf-8"))["cells"]
    assert set(truth) == {c.name for c in cells()}
    assert len(QUESTIONS) >= 300


def test_every_outcome_and_answer_occurs() -> None:
    """Agreement is worth little where only one answer is ever given."""
    outcomes = {q.outcome for q in QUESTIONS}
    answers = {assess(index(q.cell.save, q.cell.damage), q.target).answer for q in QUESTIONS}
    assert outcomes == {"right", "changed", "lost", "wrong", "error"}
    assert answers == {
        Answer.YES, Answer.YES_RESHARD, Answer.YES_SAME_SETUP, Answer.YES_CONVERT_API, Answer.YES_WARN, Answer.NO
    }  # fmt: skip


def test_the_page_is_what_would_be_written() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


def test_a_wrong_answer_is_a_disagreement() -> None:
    """The comparison itself can fail: each truth against the answer of another question."""
    fails = next(q for q in QUESTIONS if q.outcome == "error")
    loads = next(q for q in QUESTIONS if q.outcome == "right")
    good = assess(index(loads.cell.save), loads.target)
    bad = assess(index(fails.cell.save, fails.cell.damage), fails.target)
    assert asked.disagreement(fails, good)
    assert asked.disagreement(loads, bad)
