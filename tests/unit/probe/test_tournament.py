"""Schedules: every pair once, nobody twice in a round, as few rounds as there can be."""

from __future__ import annotations

from itertools import combinations

import pytest

from fsdp_doctor.probe.tournament import (
    Round,
    between_nodes,
    rails,
    rounded,
    rounds,
    sizes,
    tournament,
    within_nodes,
)


def disjoint(planned: Round) -> bool:
    ends = [r for p in planned.pairs for r in p]
    return len(ends) == len(set(ends))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 16, 64])
def test_the_circle_meets_every_pair_once(n: int) -> None:
    made = rounds(range(n))
    pairs = [p for r in made for p in r.pairs]
    assert sorted(pairs) == sorted(combinations(range(n), 2))
    assert all(disjoint(r) for r in made)
    assert len(made) == (n - 1 if n % 2 == 0 else n)


@pytest.mark.parametrize("n", [0, 1])
def test_nobody_to_meet(n: int) -> None:
    assert rounds(range(n)) == ()


def test_partner() -> None:
    (only,) = rounds([3, 7])
    assert (only.partner(3), only.partner(7), only.partner(5)) == (7, 3, None)


def nodes(count: int, width: int) -> dict[str, list[int]]:
    return {f"n{i}": list(range(i * width, (i + 1) * width)) for i in range(count)}


def test_all_nodes_play_inside_at_once() -> None:
    made = within_nodes(nodes(3, 8))
    assert len(made) == 7
    assert all(disjoint(r) and len(r.pairs) == 12 for r in made)


@pytest.mark.parametrize(("count", "expected"), [(3, 3), (4, 3), (16, 15)])
def test_between_nodes_all_rails_are_busy(count: int, expected: int) -> None:
    made = between_nodes(nodes(count, 8))
    assert len(made) == expected
    for r in made:
        assert disjoint(r) and len(r.pairs) == 8 * (count // 2)
        assert all(a % 8 == b % 8 and a // 8 != b // 8 for a, b in r.pairs)


def test_two_nodes_leave_each_rank_more_than_one_partner() -> None:
    made = between_nodes(nodes(2, 8))
    assert all(disjoint(r) for r in made)
    assert {r.partner(3) for r in made} == {11, 12, 13}


def test_rounds_grow_with_nodes_plus_ranks_per_node() -> None:
    assert len(tournament(nodes(16, 8))) == 7 + 15
    assert len(tournament(nodes(64, 8))) == 7 + 63
    assert len(tournament(nodes(1, 8))) == 7
    assert len(tournament(nodes(5, 1))) == 5


def test_rails() -> None:
    assert rails(nodes(3, 2)) == {0: (0, 2, 4), 1: (1, 3, 5)}
    assert rails(nodes(1, 8)) == {}


@pytest.mark.parametrize(
    ("size", "world"), [(1, 1), (1, 8), (64 << 10, 3), (1 << 20, 24), ((1 << 30) + 1, 512)]
)
def test_sizes_divide_into_whole_grains_per_rank(size: int, world: int) -> None:
    made = rounded(size, world)
    assert made >= size and made % (16 * world) == 0 and made - size < 16 * world


def test_units_join_the_sweep_once() -> None:
    made = sizes(8, units=(436 << 20, 1 << 30, 0))
    assert made == tuple(sorted(set(made))) and 436 << 20 in made and len(made) == 7
