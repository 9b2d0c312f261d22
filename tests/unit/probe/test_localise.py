"""Who is named: rows measured on CPU ranks with known faults, a truth table, and rates over many seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import permutations

import pytest

from fixtures.probes import L40S_LINKS, Bench
from fsdp_doctor.probe.verdicts import conclude, recheck
from fsdp_doctor.subjects.fabric import COMPUTE, COPY, EITHER_END, LATE, LINK, NODE, RAIL, TRANSFER, Culprit
from fsdp_doctor.subjects.probe import (
    CollectiveTiming,
    PairTiming,
    ProbePlan,
    ProbeResult,
    RankMeasurement,
    WorkTiming,
)

MIB = 1 << 20


def names(result: ProbeResult) -> list[tuple[str, tuple[int, ...]]]:
    return [(c.kind, c.ranks) for c in conclude(result).culprits]


def only(result: ProbeResult) -> Culprit:
    (culprit,) = conclude(result).culprits
    return culprit


# ---------------------------------------------------------------- rows measured on four CPU ranks, victim 2
def row(
    work: Mapping[int, tuple[float, float]] | None = None,
    think: Mapping[int, float] | None = None,
    pairs: Mapping[tuple[int, int], float] | None = None,
    world: int = 4,
) -> ProbeResult:
    """Ratios as they were measured: work (wall, wall/cpu), think in ms, pair seconds over the usual."""
    work, think, pairs = work or {}, think or {}, pairs or {}
    ranks = []
    for r in range(world):
        wall, waits = work.get(r, (1.0, 1.0))
        pause = think.get(r, 0.01) / 1e3
        collectives = tuple(
            CollectiveTiming(op, 8 * MIB, (0.011,) * 12, (0.011,) * 12, (pause,) * 11)
            for op in ("all_gather", "reduce_scatter", "all_reduce")
        )
        sent = tuple(
            PairTiming(r, q, 4 * MIB, (0.002 * pairs.get((r, q), 1.0),) * 5, run=run)
            for q in range(world)
            for run in (0, 1)
            if q != r
        )
        ranks.append(
            RankMeasurement(
                r,
                "h",
                r,
                work=tuple(
                    WorkTiming((0.003 * wall,) * 20, (0.003 * wall / waits,) * 20, run=run) for run in (0, 1)
                ),
                collectives=collectives,
                pairs=sent,
                stage="done",
            )
        )
    return ProbeResult(world, "gloo", ProbePlan("gloo"), tuple(ranks))


def touching(rank: int, ratio: float, world: int = 4) -> dict[tuple[int, int], float]:
    return {p: ratio for p in permutations(range(world), 2) if rank in p}


ROWS = [
    ("healthy", row(work={3: (1.14, 1.1)}, pairs={(0, 1): 1.04}), []),
    ("late by 20 ms before each operation", row(think={2: 20.1}, pairs=touching(2, 1.1)), [(LATE, (2,))]),
    (
        "stopped half of the time",
        row(work={2: (3.5, 3.5), 0: (1.4, 1.4), 3: (2.1, 2.1), 1: (1.5, 1.5)}, pairs=touching(2, 1.48)),
        [(COMPUTE, (2,))],
    ),
    (
        "stopped half of the time, a link looks bad",
        row(work={2: (4.8, 3.8)}, pairs={**touching(2, 1.2), (2, 3): 1.8, (0, 1): 1.8}),
        [(COMPUTE, (2,))],
    ),
    ("busy loops on its core, which all share", row(work={1: (1.3, 1.9)}, pairs={(1, 2): 1.3}), []),
    ("sends paced", row(pairs={p: 13.0 for p in permutations(range(4), 2) if p[0] == 2}), [(TRANSFER, (2,))]),
    ("bad adapter", row(pairs=touching(2, 7.4)), [(TRANSFER, (2,))]),
    ("bad cable from 2 to 3", row(pairs={(2, 3): 10.6}), [(LINK, (2, 3))]),
]


@pytest.mark.parametrize(("what", "result", "expected"), ROWS, ids=[r[0] for r in ROWS])
def test_measured_rows(what: str, result: ProbeResult, expected: list[tuple[str, tuple[int, ...]]]) -> None:
    assert names(result) == expected


def test_a_starved_rank_and_a_slow_core_are_told_apart() -> None:
    assert "waits for a CPU core" in only(row(work={2: (3.5, 3.5)})).evidence[0]
    assert "which is slow" in only(row(work={2: (3.5, 1.0)})).evidence[0]


def test_the_late_rank_waits_least() -> None:
    c = only(Bench().late(2, 0.02).measured())
    assert c.value == pytest.approx(20, rel=0.2) and "waits least" in c.evidence[0]


# -------------------------------------------------------------------------------------------- truth table
SLOW = {"cpu": 8.0, "cuda": 1.4}
RANK: Callable[[Bench, float], Bench] = lambda b, r: b.slow_rank(1, r)  # noqa: E731
SENDS: Callable[[Bench, float], Bench] = lambda b, r: b.slow_rank(1, r, way="sending")  # noqa: E731
LINE: Callable[[Bench, float], Bench] = lambda b, r: b.slow_link(0, 1, r)  # noqa: E731
BOTH: Callable[[Bench, float], Bench] = lambda b, r: b.slow_link(0, 1, r, both=True)  # noqa: E731
TABLE = [
    # world, fault, kind, ranks, source, target
    (2, RANK, None, (), None, None),  # both ways of the only pair: nothing to compare with
    (2, BOTH, None, (), None, None),
    (2, SENDS, EITHER_END, (0, 1), 1, 0),
    (2, LINE, EITHER_END, (0, 1), 0, 1),
    (3, RANK, TRANSFER, (1,), None, None),
    (3, SENDS, TRANSFER, (1,), None, None),
    (3, LINE, LINK, (0, 1), 0, 1),
    (3, BOTH, LINK, (0, 1), 0, 1),
    (4, RANK, TRANSFER, (1,), None, None),
    (4, SENDS, TRANSFER, (1,), None, None),
    (4, LINE, LINK, (0, 1), 0, 1),
    (4, BOTH, LINK, (0, 1), 0, 1),
    (8, RANK, TRANSFER, (1,), None, None),
    (8, LINE, LINK, (0, 1), 0, 1),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("world", "fault", "kind", "ranks", "source", "target"), TABLE)
def test_truth_table(
    device: str,
    world: int,
    fault: Callable[[Bench, float], Bench],
    kind: str | None,
    ranks: tuple[int, ...],
    source: int | None,
    target: int | None,
) -> None:
    result = fault(Bench(world=world, device=device, seed=7), SLOW[device]).measured()
    if kind is None:
        assert names(result) == []
        return
    c = only(result)
    assert (c.kind, c.ranks, c.source, c.target) == (kind, ranks, source, target)
    assert c.confirmed and c.fails
    assert c.both_ways == (fault in (RANK, BOTH))


def test_sixty_four_ranks() -> None:
    assert names(Bench(world=64, device="cuda", ops=("all_gather",)).slow_rank(40, 1.4).measured()) == [
        (TRANSFER, (40,))
    ]


@pytest.mark.parametrize(("world", "nodes"), [(16, 2), (32, 4), (24, 3)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_several_nodes(world: int, nodes: int, device: str) -> None:
    ratio = SLOW[device]

    def bench() -> Bench:
        return Bench(world=world, nodes=nodes, device=device, ops=("all_gather",), seed=3)

    second = tuple(range(8, 16))
    inside = only(bench().slow_node(1, ratio, scope="inside").measured())
    assert (inside.kind, inside.host, inside.ranks) == (NODE, "n1", second) and "inside" in inside.scope
    rail = only(bench().slow_rail(3, ratio).measured())
    assert (rail.kind, rail.rail, rail.ranks) == (RAIL, 3, tuple(range(3, world, 8)))
    adapter = only(bench().slow_rank(11, ratio, scope="between").measured())
    assert (adapter.kind, adapter.ranks, adapter.scope) == (TRANSFER, (11,), "between nodes")
    outside = names(bench().slow_node(1, ratio).measured())
    assert outside == ([] if nodes == 2 else [(NODE, second)])  # of two nodes neither is the odd one


def test_one_rank_per_node() -> None:
    assert names(Bench(world=5, nodes=5).slow_node(3, 8.0).measured()) == [(TRANSFER, (3,))]


def test_layouts_are_not_faults() -> None:
    """Sockets, bridged pairs, a lone GPU on the far socket: slow pairs, and nothing is broken."""
    sockets = Bench(world=8, device="cuda", numa=True, inside=22.0, links=L40S_LINKS, ops=("all_gather",))
    assert names(sockets.measured()) == []
    bridged = Bench(world=4, device="cuda", inside=250.0, ops=("all_gather",))
    for a, b in permutations(range(4), 2):
        if {a, b} not in ({0, 1}, {2, 3}):
            bridged.slow_link(a, b, 10.0)
    assert names(bridged.measured()) == []


def test_a_lone_gpu_on_the_far_socket_is_not_slow() -> None:
    lone = Bench(world=3, device="cuda", numa=True, inside=22.0, links=L40S_LINKS, ops=("all_gather",))
    assert names(lone.measured()) == []


def test_rails_are_compared_with_rails() -> None:
    """Across rails the bytes go over the spine: a link as slow as those is slow for its own rail."""
    two = Bench(world=16, nodes=2, device="cuda", cross_rail=0.6, ops=("all_gather",))
    assert names(two.measured()) == []
    assert names(two.slow_link(3, 11, 1.6, both=True).measured()) == [(LINK, (3, 11))]


def test_two_gpus_of_a_node_have_only_each_other() -> None:
    c = only(
        Bench(world=6, nodes=3, device="cuda", ops=("all_gather",))
        .slow_node(1, 1.5, scope="inside")
        .measured()
    )
    assert (c.kind, c.ranks) == (EITHER_END, (2, 3))


def test_disturbed_iterations_do_not_accuse_a_node() -> None:
    accused = [
        seed
        for seed in range(20)
        if names(Bench(24, 3, "cuda", seed, noise=0.02, spikes=0.05, ops=("all_gather",)).measured())
    ]
    assert accused == []


def test_a_fault_on_top_of_a_layout() -> None:
    sockets = Bench(world=8, device="cuda", numa=True, inside=22.0, links=L40S_LINKS, ops=("all_gather",))
    assert names(sockets.slow_rank(6, 1.5).measured()) == [(TRANSFER, (6,))]


def test_mixed_gpus_are_compared_with_their_kind() -> None:
    result = Bench(world=8, device="cuda", ops=("all_gather",)).measured()
    older = tuple(
        replace(
            r,
            gpu_name="NVIDIA A100-SXM4-80GB" if r.rank >= 4 else r.gpu_name,
            work=tuple(
                replace(w, wall_seconds=tuple(s * (2.5 if r.rank >= 4 else 1.0) for s in w.wall_seconds))
                for w in r.work
            ),
        )
        for r in result.ranks
    )
    assert names(replace(result, ranks=older)) == []


# -------------------------------------------------------------------------------- repetition before failure
def test_a_single_look_never_fails() -> None:
    c = only(Bench(repeat=False).slow_rank(2, 8.0).measured())
    assert not c.confirmed and not c.fails


def test_a_small_excess_on_hardware_is_not_told_after_one_look() -> None:
    assert names(Bench(world=8, device="cuda", repeat=False).slow_rank(5, 1.12).measured()) == []
    again = only(Bench(world=8, device="cuda").slow_rank(5, 1.12).measured())
    assert again.confirmed and not again.fails


def test_a_repetition_that_is_fine_takes_the_accusation_back() -> None:
    sick = Bench(world=8, repeat=False).slow_rank(5, 8.0)
    first = sick.measured()
    assert names(first) == [(TRANSFER, (5,))]
    sick.ways.clear()
    assert names(sick.again(first)) == []


def test_what_is_repeated_holds_the_suspect_and_healthy_pairs() -> None:
    wanted = recheck(Bench(world=8, repeat=False).slow_link(2, 3, 8.0).measured())
    assert (2, 3) in wanted.pairs and any(not {2, 3} & set(p) for p in wanted.pairs)
    assert recheck(Bench(world=8, repeat=False).measured()).empty
    assert recheck(Bench(world=8, repeat=False).slow_work(1, 4.0).measured()).work


# -------------------------------------------------------------------------------------------------- rates
SHAPES = [(2, 1), (3, 1), (4, 1), (8, 1), (16, 2), (24, 3)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_healthy_jobs_have_no_outlier(device: str) -> None:
    accused = {
        (world, nodes, seed): found
        for world, nodes in SHAPES
        for seed in range(24)
        if (found := names(Bench(world, nodes, device, seed, ops=("all_gather",)).measured()))
    }
    assert accused == {}


def test_a_very_noisy_shared_machine_is_rarely_accused() -> None:
    accused = [
        s
        for s in range(120)
        if names(Bench(4, seed=s, noise=0.3, spikes=0.3, ops=("all_gather",)).measured())
    ]
    assert len(accused) <= 1


Fault = Callable[[Bench], Bench]
FAULTS: list[tuple[str, str, int, int, Fault, tuple[str, tuple[int, ...]]]] = [
    ("compute", "cpu", 4, 1, lambda b: b.slow_work(2, 3.5), (COMPUTE, (2,))),
    ("compute", "cuda", 8, 1, lambda b: b.slow_work(5, 1.2, starved=False), (COMPUTE, (5,))),
    ("late", "cpu", 4, 1, lambda b: b.late(2, 0.02), (LATE, (2,))),
    ("late", "cuda", 8, 1, lambda b: b.late(2, 0.005), (LATE, (2,))),
    ("late and paced", "cpu", 4, 1, lambda b: b.late(2, 0.02).slow_rank(2, 5.0), (LATE, (2,))),
    ("rank", "cpu", 4, 1, lambda b: b.slow_rank(2, 7.0), (TRANSFER, (2,))),
    ("rank", "cpu", 3, 1, lambda b: b.slow_rank(0, 7.0), (TRANSFER, (0,))),
    ("rank", "cuda", 8, 1, lambda b: b.slow_rank(6, 1.25), (TRANSFER, (6,))),
    ("receiver", "cuda", 8, 1, lambda b: b.slow_rank(6, 1.3, way="receiving"), (TRANSFER, (6,))),
    ("link", "cpu", 4, 1, lambda b: b.slow_link(2, 3, 10.0), (LINK, (2, 3))),
    ("link", "cpu", 8, 1, lambda b: b.slow_link(6, 1, 10.0), (LINK, (1, 6))),
    ("link", "cuda", 8, 1, lambda b: b.slow_link(2, 3, 1.3), (LINK, (2, 3))),
    ("adapter", "cuda", 24, 3, lambda b: b.slow_rank(11, 1.3, scope="between"), (TRANSFER, (11,))),
    ("node", "cuda", 24, 3, lambda b: b.slow_node(2, 1.3), (NODE, tuple(range(16, 24)))),
    ("rail", "cuda", 24, 3, lambda b: b.slow_rail(4, 1.3), (RAIL, (4, 12, 20))),
    ("copy", "cuda", 8, 1, lambda b: b.slow_copy(3, 1.3), (COPY, (3,))),
    ("one way of two", "cpu", 2, 1, lambda b: b.slow_link(1, 0, 8.0), (EITHER_END, (0, 1))),
]


@pytest.mark.parametrize(
    ("what", "device", "world", "nodes", "fault", "expected"),
    FAULTS,
    ids=[f"{f[0]}-{f[1]}-{f[2]}" for f in FAULTS],
)
def test_faults_get_their_right_name(
    what: str, device: str, world: int, nodes: int, fault: Fault, expected: tuple[str, tuple[int, ...]]
) -> None:
    runs = 20 if world > 8 else 40
    hits = [
        names(fault(Bench(world, nodes, device, seed, ops=("all_gather",))).measured()) == [expected]
        for seed in range(runs)
    ]
    assert sum(hits) >= 0.95 * runs


def test_three_times_slower_on_shared_cores_needs_a_second_look() -> None:
    assert names(Bench(world=2, repeat=False).slow_link(1, 0, 3.4).measured()) == []
    assert recheck(Bench(world=2, repeat=False).slow_link(1, 0, 3.4).measured()).pairs == ((0, 1),)
    assert names(Bench(world=2).slow_link(1, 0, 3.4).measured()) == [(EITHER_END, (0, 1))]
