"""Wrong bytes, counters and starting times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_doctor.probe.records import counters, mismatches, starts
from fsdp_doctor.subjects.probe import CollectiveTiming, ProbePlan, ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_counters import NVML_FIELDS, Growth, counter


def job(*ranks: RankMeasurement, rotated: bool = False) -> ProbeResult:
    return ProbeResult(len(ranks), "nccl", ProbePlan("nccl"), ranks, rotated=rotated)


def gathered(
    rank: int, bad: tuple[int, ...] | None, op: str = "all_gather", group: str = "world"
) -> RankMeasurement:
    timing = CollectiveTiming(
        op, 1024, correct=None if bad is None else not bad, bad_slices=bad or (), group=group
    )
    return RankMeasurement(rank, "h", rank, collectives=(timing,))


WRONG = [
    ("one sender", [(2,)] * 4, False, (2,), "rank 2 wrong"),
    ("its own copy is right", [(2,), (2,), (), (2,)], False, (2,), "rank 2 wrong"),
    ("one receiver", [(), (0, 2), (), ()], False, (0, 2), "rank 1 alone"),
    ("permuted", [(0, 1), (0, 1), (2, 3), (2, 3)], True, (0, 1, 2, 3), "nccl#1906"),
    ("everywhere", [(0, 1), (0, 1), (2, 3), (2, 3)], False, (0, 1, 2, 3), "several ranks and parts"),
]


@pytest.mark.parametrize(("what", "bad", "rotated", "slices", "pattern"), WRONG, ids=[w[0] for w in WRONG])
def test_patterns(
    what: str, bad: list[tuple[int, ...]], rotated: bool, slices: tuple[int, ...], pattern: str
) -> None:
    (found,), compared = mismatches(job(*(gathered(r, b) for r, b in enumerate(bad)), rotated=rotated))
    assert compared == 1 and found.slices == slices and pattern in found.pattern
    assert found.receivers == tuple(r for r, b in enumerate(bad) if b)


def test_right_and_unchecked_data() -> None:
    assert mismatches(job(gathered(0, ()), gathered(1, ()))) == ((), 1)
    assert mismatches(job(gathered(0, None), gathered(1, None))) == ((), 0)


def test_a_huge_world_costs_nothing() -> None:
    (found,), _ = mismatches(replace(job(gathered(0, (7,))), world_size=10**15))
    assert found.slices == (7,)


def test_positions_in_a_group_are_its_ranks() -> None:
    ranks = [gathered(r, (1,), group="rail:0") for r in (0, 8, 16)]
    (found,), _ = mismatches(replace(job(*ranks), world_size=24))
    assert found.slices == (8,)


def counted(rank: int, host: str, **change: tuple[int, int]) -> RankMeasurement:
    names = {k.replace("__", "/"): v for k, v in change.items()}
    return RankMeasurement(
        rank,
        host,
        counters_before={k: v[0] for k, v in names.items()},
        counters_after={k: v[1] for k, v in names.items()},
    )


def test_growth_and_its_meaning() -> None:
    found, compared = counters(
        job(
            counted(0, "a", nvlink__crc_data=(5, 8), nvlink__replay=(9, 9), clocks__power_cap_ns=(0, 10**9)),
            counted(1, "a", pcie__fatal=(0, 1), nvlink__recovery=(4, 1), what__is_this=(0, 9)),
        )
    )
    assert [(g.name, g.delta, g.rank, g.meaning) for g in found] == [
        ("nvlink/crc_data", 3, 0, "ERRORS"),
        ("pcie/fatal", 1, 1, "BROKEN"),
    ]
    assert compared == 6


def test_an_adapter_that_two_ranks_read_counts_once_per_host() -> None:
    one = {"ib/mlx5_0:1/link_downed": 1}
    two = {"ib/mlx5_0:1/link_downed": 2}
    ranks = [
        RankMeasurement(r, h, counters_before=one, counters_after=two)
        for r, h in ((0, "a"), (1, "a"), (2, "b"))
    ]
    found, compared = counters(job(*ranks))
    assert [(g.rank, g.host) for g in found] == [(0, "a"), (2, "b")] and compared == 2


def test_every_counter_asked_of_nvml_is_known_or_normal() -> None:
    assert {n for n in NVML_FIELDS if counter(n) is None} == {"clocks/power_cap_ns"}
    assert counter("ib/mlx5_0:1/port_xmit_wait").growth is Growth.CONGESTION  # type: ignore[union-attr]
    assert counter("ib/mlx5_0:1/link_downed_x") is None


def begun(rank: int, imported: float, init: float | None, connect: float | None = 0.5) -> RankMeasurement:
    return RankMeasurement(rank, "h", import_seconds=imported, init_seconds=init, connect_seconds=connect)


def test_starting_times() -> None:
    slow, said = starts(job(*(begun(r, 2.0, 1.0) for r in range(4))))
    assert slow == () and said == ("import 2.0 s (slowest 2.0 s)", "init 1.5 s (slowest 1.5 s)")
    (all_slow,), _ = starts(job(*(begun(r, 2.0, 50.0) for r in range(4))))
    assert (all_slow.what, all_slow.ranks) == ("init", ()) and all_slow.seconds == 50.5
    (one,), _ = starts(job(*(begun(r, 20.0 if r == 3 else 2.0, 1.0) for r in range(4))))
    assert (one.what, one.ranks, one.seconds) == ("import", (3,), 20.0)
    assert starts(job(begun(0, 0.0, None))) == ((), ())
