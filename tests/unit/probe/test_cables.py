"""Faults between hosts that hold several ranks: one cable is named once, and two hosts cannot tell whose it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.probes import Bench
from fsdp_doctor.probe.verdicts import conclude
from fsdp_doctor.subjects.fabric import EITHER_END, LINK, NODE, TRANSFER, Culprit
from fsdp_doctor.subjects.probe import ProbeResult


def culprits(bench: Bench) -> tuple[Culprit, ...]:
    return conclude(bench.measured()).culprits


def cable(bench: Bench, source: int, target: int, ratio: float, *, both: bool = False) -> Bench:
    """Slow down what goes from one host to another, for all of their ranks."""
    for a in bench.names()[f"n{source}"]:
        for b in bench.names()[f"n{target}"]:
            bench.slow_link(a, b, ratio, both=both)
    return bench


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("nodes", [3, 4, 6])
@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_a_cable_is_one_link(both: bool, nodes: int, per_node: int, seed: int) -> None:
    world = nodes * per_node
    (found,) = culprits(cable(Bench(world=world, nodes=nodes, seed=seed), 2, 1, 20.0, both=both))
    assert (found.kind, found.both_ways, found.fails) == (LINK, both, True)
    hosts = {r: f"n{r // per_node}" for r in range(world)}
    assert found.source is not None and found.target is not None
    ends = [hosts[found.source], hosts[found.target]]
    assert sorted(ends) == ["n1", "n2"] and (both or ends == ["n2", "n1"])
    assert {hosts[r] for r in found.ranks} == {"n1", "n2"} and len(found.ranks) == 2 * per_node
    if per_node > 1:
        assert f"so are all {per_node} pairs" in found.evidence[0]


@pytest.mark.parametrize("per_node", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_one_way_between_two_hosts_has_two_possible_ends(per_node: int, seed: int) -> None:
    (found,) = culprits(cable(Bench(world=2 * per_node, nodes=2, seed=seed), 1, 0, 20.0))
    assert (found.kind, found.both_ways, found.fails, found.confirmed) == (EITHER_END, False, True, True)
    assert found.source is not None and found.source >= per_node and found.target is not None
    assert found.target < per_node and len(found.ranks) == 2 * per_node


@pytest.mark.parametrize("per_node", [1, 2, 4])
def test_two_hosts_that_are_slow_both_ways_are_not_told_apart(per_node: int) -> None:
    assert culprits(cable(Bench(world=2 * per_node, nodes=2), 1, 0, 20.0, both=True)) == ()


@pytest.mark.parametrize("per_node", [2, 4])
@pytest.mark.parametrize("nodes", [3, 4])
def test_an_adapter_that_sends_slowly_is_its_node(nodes: int, per_node: int) -> None:
    bench = Bench(world=nodes * per_node, nodes=nodes)
    for rank in bench.names()["n1"]:
        bench.slow_rank(rank, 20.0, way="sending", scope="between")
    (found,) = culprits(bench)
    assert (found.kind, found.host, found.both_ways, found.fails) == (NODE, "n1", False, True)


def test_one_slow_rank_of_two_hosts_is_named() -> None:
    (found,) = culprits(Bench(world=8, nodes=2).slow_rank(5, 20.0, scope="between"))
    assert (found.kind, found.ranks) == (TRANSFER, (5,))


@pytest.mark.parametrize("world", [2, 4, 6, 8, 12])
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_even_hosts_accuse_nobody(world: int, nodes: int, seed: int) -> None:
    if world % nodes == 0:
        found = culprits(Bench(world=world, nodes=nodes, seed=seed, noise=0.2, spikes=0.2))
        assert not [c for c in found if c.fails], found


def test_a_cable_that_only_one_look_saw_is_a_warning() -> None:
    found = culprits(cable(Bench(world=6, nodes=3, repeat=False), 0, 1, 20.0))
    assert [(c.kind, c.fails, c.confirmed) for c in found] == [(LINK, False, False)]


def test_two_rails_of_three_are_two_links() -> None:
    bench = Bench(world=12, nodes=4)
    for a, b in ((3, 6), (4, 7)):
        bench.slow_link(a, b, 20.0)
    found = culprits(bench)
    assert [(c.source, c.target) for c in found] == [(3, 6), (4, 7)]


def test_hosts_of_one_name_do_not_confuse() -> None:
    result = Bench(world=4, nodes=2).measured()
    merged: ProbeResult = replace(result, ranks=tuple(replace(r, host="same") for r in result.ranks))
    assert conclude(merged).culprits == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_link_far_below_its_slow_rank_is_a_second_fault(seed: int) -> None:
    found = culprits(Bench(world=4, seed=seed).slow_rank(3, 2.6).slow_link(1, 3, 40.0))
    assert {c.kind for c in found} == {TRANSFER, LINK}
    assert [(c.source, c.target) for c in found if c.kind == LINK] == [(1, 3)]
    assert [c.ranks for c in found if c.kind == TRANSFER] == [(3,)]


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_rank_explains_links_of_its_rate(seed: int) -> None:
    found = culprits(Bench(world=6, seed=seed, noise=0.25, spikes=0.3).slow_rank(3, 6.0))
    assert [(c.kind, c.ranks) for c in found] == [(TRANSFER, (3,))]


@pytest.mark.parametrize("other", [(0, 3), (3, 1), (0, 1)])
def test_a_pair_slowed_by_noise_does_not_hide_a_far_slower_link(other: tuple[int, int]) -> None:
    found = culprits(Bench(world=4).slow_link(1, 2, 30.0).slow_link(*other, 2.3))
    assert (LINK, 1, 2) in [(c.kind, c.source, c.target) for c in found if c.fails]
    assert TRANSFER not in {c.kind for c in found}
