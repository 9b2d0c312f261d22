"""The doctor and torch's own analyser on the same dumps, beside the truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures.dumps.beside import BEGIN, END, PAGE, Answers, ask, kinds, table

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Sequence[Answers]]:
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    place: Path = tmp_path_factory.mktemp("dumps")
    return ask(list(kinds(place)))


def test_the_doctor_is_right(answers: Sequence[Sequence[Answers]]) -> None:
    assert [a for kind in answers for a in kind if not a.right] == []


def test_it_agrees_where_torchfrtrace_is_right(answers: Sequence[Sequence[Answers]]) -> None:
    right = [a for kind in answers for a in kind if a.theirs_right]
    assert len(right) > 20, "torchfrtrace was not understood"
    assert all(a.ours[1] == a.theirs.first for a in right)


def test_it_answers_where_torchfrtrace_does_not(answers: Sequence[Sequence[Answers]]) -> None:
    flat = [a for kind in answers for a in kind]
    assert any(a.theirs.error == "KeyError" for a in flat)
    assert any(a.theirs.undecided for a in flat)
    assert any(not a.theirs.blocks and a.want[0] == "stalled" for a in flat)


def test_the_page_shows_this_table(answers: Sequence[Sequence[Answers]]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the page is of torch 2.13")
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == table(answers).strip()
