"""Predictions of `ckpt estimate` beside the resident memory of real ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from bench.ckpt_estimate import MIB, measure

SLACK = 12 * MIB
"""Of the allocator and of what torch imports on the way."""


@pytest.mark.timeout(240)
def test_ways_take_what_is_predicted() -> None:
    found = list(measure(("full", "load-each"), deadline=100))
    assert len(found) == 2
    for cost, values in found:
        predicted = cost.gpu_per_rank + cost.host_rank0
        assert 0.75 * predicted - SLACK < values[0] < 1.25 * predicted + SLACK, (cost.way, values)
