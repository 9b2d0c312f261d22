"""Who stood still, from states and steps."""

from __future__ import annotations

import pytest

from fsdp_doctor.probe.journals import Steps
from fsdp_doctor.probe.settle import Seen, standing_still, state_words

WAITING, AHEAD, BEHIND = Steps(9, 8), Steps(9, 8), Steps(8, 8)


def seen(rank: int, steps: Steps, state: str | None = "S", stage: str = "sweep", **more: bool) -> Seen:
    return Seen(rank, stage, steps, state, more.pop("ended", False), **more)


@pytest.mark.parametrize(
    ("ranks", "guilty"),
    [
        pytest.param([seen(0, AHEAD, ended=True), seen(1, WAITING, "T")], {1}, id="stopped inside a step"),
        pytest.param([seen(0, AHEAD, ended=True), seen(1, BEHIND)], {1}, id="sleeps between steps"),
        pytest.param([seen(0, AHEAD), seen(1, BEHIND), seen(2, AHEAD)], {1}, id="nobody ended yet"),
        pytest.param([seen(0, AHEAD), seen(1, WAITING, "D")], {1}, id="held by the kernel"),
        pytest.param(
            [seen(0, AHEAD, None, ended=True, silent=True), seen(1, WAITING), seen(2, Steps(8, 7))],
            set(),
            id="a death explains those that wait",
        ),
        pytest.param([seen(0, AHEAD), seen(1, WAITING)], {0, 1}, id="nobody can be told apart"),
        pytest.param(
            [seen(0, Steps(1, 0), stage="rendezvous"), seen(1, Steps(), stage="import")],
            {1},
            id="still importing",
        ),
        pytest.param([seen(0, BEHIND, done=True), seen(1, BEHIND, done=True)], set(), id="all done"),
        pytest.param([], set(), id="nobody"),
    ],
)
def test_standing_still(ranks: list[Seen], guilty: set[int]) -> None:
    assert standing_still(ranks) == guilty


def test_words_of_states() -> None:
    assert "SIGSTOP" in state_words("T", None)
    assert "nfs_wait" in state_words("D", "nfs_wait")
    assert state_words("S", None) == ""
