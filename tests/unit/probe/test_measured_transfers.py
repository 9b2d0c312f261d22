"""What a probe measured goes into the step model."""

from __future__ import annotations

import pytest

from fixtures.probes import Bench
from fsdp_doctor.probe.figures import figures
from fsdp_doctor.probe.measured_transfers import full_shard, hybrid_shard
from fsdp_doctor.probe.step_choice import choose
from fsdp_doctor.probe.step_model import StepInputs

MODEL = StepInputs((8e9 / 32,) * 32, 4096, 989e12, 0.45, 16)


def test_one_node_has_no_hybrid() -> None:
    found = figures(Bench(world=8, device="cuda").measured())
    assert hybrid_shard(found) is None
    full = full_shard(found)
    assert full is not None and full.all_gather.seconds(1 << 30) == pytest.approx(0.0026, rel=0.1)


def test_without_reduce_scatter_there_is_nothing_to_predict() -> None:
    assert full_shard(figures(Bench(ops=("all_gather",)).measured())) is None


def test_a_slow_network_makes_hybrid_the_choice() -> None:
    slow = {"all_gather": 25.0, "reduce_scatter": 25.0, "all_reduce": 25.0}
    found = figures(Bench(world=16, nodes=2, device="cuda", busbw=slow).measured())
    full, hybrid = full_shard(found), hybrid_shard(found)
    assert full is not None and hybrid is not None
    choice = choose(MODEL, full, hybrid, 2, 8e9 * 16, 100 * 2**30)
    assert choice.strategy == "HYBRID_SHARD" and choice.hybrid is not None
    assert choice.full.exposed_share > 0.5 > choice.hybrid.exposed_share


def test_the_slowest_node_counts() -> None:
    even = hybrid_shard(figures(Bench(world=16, nodes=2, device="cuda").measured()))
    sick = hybrid_shard(
        figures(Bench(world=16, nodes=2, device="cuda").slow_node(1, 2.0, scope="inside").measured())
    )
    assert even is not None and sick is not None
    assert sick.all_gather.seconds(1 << 30) == pytest.approx(2 * even.all_gather.seconds(1 << 30), rel=0.05)
