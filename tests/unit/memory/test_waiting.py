"""Conditions on values that nobody has: loops end, branches are taken."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fsdp_doctor.memory.child.waiting import MOST_TURNS, Waiting, draws  # noqa: E402


def test_a_loop_ends_and_a_branch_in_every_step_is_taken() -> None:
    waiting = Waiting()
    turns = 0
    while waiting.condition(0):
        turns += 1
    assert MOST_TURNS <= turns <= MOST_TURNS + 1  # Python may ask for the first time in front of the loop
    assert all(waiting.condition(step) for step in range(2 * MOST_TURNS))  # a phase passed in between


@pytest.mark.parametrize(
    ("uniform", "std", "low", "high"),
    [(False, 1.0, -2.0, 2.0), (False, 0.02, -0.06, 0.06), (True, 1.0, -0.2, 0.2), (True, 1.0, 0.5, 1.5)],
)
def test_draws_are_as_many_as_torch_makes(uniform: bool, std: float, low: float, high: float) -> None:
    """Counted in a loop of the same kind; chance moves the last ones."""
    generator = torch.Generator().manual_seed(1)
    highest = max(low, min(0.0, high))

    def wrong(n: int) -> int:
        if not uniform:
            x = torch.randn(n, generator=generator) * std
            return int(((x < low) | (x > high)).sum())
        x = torch.rand(n, generator=generator) * (high - low) + low
        density = torch.exp(-0.5 * (x / std) ** 2 + 0.5 * (highest / std) ** 2)
        return int((torch.rand(n, generator=generator) > density).sum())

    left, times = 100_000, 0
    while (left := wrong(left)) > 0:
        times += 1
    assert abs(times - draws(100_000, 0.0, std, low, high)) <= 3


def test_what_is_never_outside_is_drawn_once() -> None:
    assert draws(10**9, 0.0, 0.02, -2.0, 2.0) == 0
