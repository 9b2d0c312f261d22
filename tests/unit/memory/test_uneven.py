"""Which rank trains how much of FSDP1's flat parameters."""

from __future__ import annotations

from fsdp_doctor.memory.job import Job
from fsdp_doctor.memory.uneven import trained, uneven

MI = 1 << 20


def test_each_rank_has_its_part_of_what_trains() -> None:
    unit = [(30, False, 4), (50, True, 4), (20, True, 2)]  # 100 elements: 25 for each of 4 ranks
    assert trained([unit], 4) == [0, 20 * 4, 25 * 4, 5 * 4 + 20 * 2]
    assert trained([unit, [(8, True, 4)]], 4) == [8, 88, 108, 68]
    assert sum(trained([[(7, True, 1), (94, True, 1)]], 8)) == 101


def test_the_rank_that_keeps_most_is_told() -> None:
    rows = [
        {"name": "embed", "shape": [8, MI], "unit": 0, "trainable": False, "item_bytes": 4},
        {"name": "head", "shape": [8, MI], "unit": 0, "trainable": True, "item_bytes": 4},
    ]
    told = [
        [(a.place, a.what.split()[2]) for a in uneven({"parameters": rows}, Job("m", None, 8, **more))]  # type: ignore[arg-type]
        for more in (
            {"api": "fsdp1"},
            {"api": "fsdp1", "optimizer": "sgdm"},
            {"api": "fsdp1", "optimizer": "sgd"},
            {"api": "fsdp1", "strategy": "NO_SHARD"},
            {"api": "fsdp2"},
        )
    ]
    assert told == [[("rank 4", str(16 * MI))], [("rank 4", str(8 * MI))], [], [], []]
