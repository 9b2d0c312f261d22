"""The largest value that fits is found by few replays, whatever the curve, and confirmed by its neighbour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from fsdp_doctor.memory.advice.scale import Scale, ScaleError, scale
from fsdp_doctor.memory.advice.search import Found, Point, largest
from fsdp_doctor.memory.advice.strategies import strategies
from fsdp_doctor.memory.job import Job
from fsdp_doctor.subjects.unit_plan import UnitPlan

GIB = 1 << 30
Curve = Callable[[int], int | None]


def search(curve: Curve, start: int, capacity: int, step: int = 1, most: int = 100) -> tuple[Found, int]:
    asked: list[int] = []

    def measure(values: Sequence[int]) -> Mapping[int, Point]:
        asked.extend(values)
        assert len(asked) <= most
        return {v: Point(v, curve(v), "" if curve(v) is not None else "too long") for v in values}

    return largest(measure, Point(start, curve(start)), capacity, step), len(asked)


@pytest.mark.parametrize(
    "curve",
    [
        lambda v: 3 * GIB + v * GIB // 2,
        lambda v: 3 * GIB + v * v * (1 << 22),
        lambda v: 3 * GIB + (v + 3) // 4 * GIB,
        lambda v: max(8 * GIB, 2 * GIB + v * GIB // 2),
    ],
    ids=["affine", "quadratic", "in steps", "flat at first"],
)
@pytest.mark.parametrize("start", [1, 4, 64])
@pytest.mark.parametrize("capacity", [10 * GIB, 40 * GIB + 12345])
def test_the_neighbours_of_the_limit_are_replayed(curve: Curve, start: int, capacity: int) -> None:
    found, asked = search(curve, start, capacity)
    right = max(v for v in range(0, 4096) if curve(v) <= capacity)
    assert found.confirmed and found.value == right
    assert found.next is not None and found.next.value == right + 1
    assert {right, right + 1} <= {p.value for p in found.points}
    assert asked <= 22


def test_an_affine_curve_takes_few_replays() -> None:
    assert search(lambda v: 3 * GIB + v * GIB // 2, 4, 40 * GIB)[1] <= 5


def test_lengths_go_by_their_step() -> None:
    found, _ = search(lambda v: GIB + v * (1 << 20), 1024, 4 * GIB, 128)
    assert (found.value, found.next.value if found.next else None) == (3072, 3200)


def test_nothing_fits() -> None:
    found, _ = search(lambda v: 9 * GIB + v, 8, 8 * GIB)
    assert found.confirmed and found.value == 0 and found.next is not None and found.next.value == 1


def test_a_length_that_the_model_does_not_take_is_the_limit() -> None:
    found, _ = search(lambda v: GIB if v > 2048 else v << 16, 1024, GIB // 4, 128)
    assert found.confirmed and found.value == 2048
    found, _ = search(lambda v: None if v > 2048 else v << 16, 1024, 40 * GIB, 128)
    assert found.confirmed and found.value == 2048 and found.next is not None and found.next.why == "too long"


def test_what_does_not_grow_is_said() -> None:
    found, _ = search(lambda v: GIB, 4, 8 * GIB)
    assert not found.confirmed and "does not grow" in found.why


def test_time_that_ends_is_said() -> None:
    found = largest(lambda values: {}, Point(4, GIB), 8 * GIB)
    assert not found.confirmed and found.value == 4 and found.why == "time ended"


JOB = Job("m.py:f", "m.py:batch", 8, batch_args={"rows": 4})


def test_the_argument_is_named_known_or_asked_for() -> None:
    assert scale("--max-batch", None, {"rows": None}, JOB) == Scale("--max-batch", "rows", 4)
    assert scale("--max-seq", "width", {"width": 384}, JOB) == Scale("--max-seq", "width", 384, 128)
    with pytest.raises(ScaleError, match="--seq-arg"):
        scale("--max-seq", None, {"width": 384}, JOB)
    with pytest.raises(ScaleError, match="no argument 'depth'"):
        scale("--max-batch", "depth", {"width": 384}, JOB)
    with pytest.raises(ScaleError, match="no number to start from"):
        scale("--max-seq", None, {"seq": None}, JOB)


PLAN = UnitPlan("fsdp2", "FULL_SHARD", 16, 16, "bfloat16", None, ("Block",), (), (), suggested=("Block",))


def test_strategies_keep_precision_and_batch() -> None:
    job = Job("m.py:f", "m.py:batch", 16, param_dtype="bfloat16", wrap=("Block",), batch_args={"rows": 4})
    rows = {s.name: s for s in strategies(job, PLAN)}
    assert {
        "DDP",
        "FSDP1 FULL_SHARD",
        "FSDP2 reshard_after_forward=True",
        "FSDP2 hybrid, groups of 8",
    } <= set(rows)
    assert all(s.job.batch_args == job.batch_args and not s.why_not for s in rows.values())
    assert rows["DDP"].job.autocast == "bfloat16" and rows["DDP"].job.wrap == ()
    assert all(s.job.param_dtype == "bfloat16" for n, s in rows.items() if n != "DDP")
