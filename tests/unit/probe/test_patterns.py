"""The data of collectives: exact in bfloat16, and wrong wherever a slice is not where it belongs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fsdp_doctor.probe.worker import patterns  # noqa: E402


def summed(ranks: int, count: int, dtype: object) -> object:
    total = torch.zeros(count, dtype=dtype)
    for rank in range(ranks):
        part = torch.empty(count, dtype=dtype)
        patterns.fill_summand(part, rank, ranks)
        total += part
    return total


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64, 300, 1024])
def test_sums_are_exact_in_any_order(ranks: int, dtype: object) -> None:
    assert patterns.check_sum(summed(ranks, 16 * ranks, dtype), ranks) is None


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_sum_that_lacks_a_rank_or_a_shard_of_another_is_wrong(ranks: int) -> None:
    count = 64 * ranks
    total = summed(ranks, count, torch.bfloat16)
    part = torch.empty(count, dtype=torch.bfloat16)
    patterns.fill_summand(part, 1, ranks)
    assert patterns.check_sum(total - part, ranks) is not None  # type: ignore[operator]
    shard = count // ranks
    assert patterns.check_sum(total[:shard], ranks) is None  # type: ignore[index]
    assert patterns.check_sum(total[shard : 2 * shard], ranks, shard) is None  # type: ignore[index]
    assert patterns.check_sum(total[:shard], ranks, shard) is not None  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_every_source_and_place_has_words_of_its_own(dtype: object) -> None:
    one, two = (torch.empty(256, dtype=dtype) for _ in range(2))
    patterns.fill_coded(one, 0)
    patterns.fill_coded(two, 1)
    assert patterns.check_coded(one, 0) is None and patterns.check_coded(two, 1) is None
    assert patterns.check_coded(one, 1) is not None
    assert patterns.check_coded(one.roll(16), 0) is not None


def test_one_damaged_bit_is_told_with_its_place() -> None:
    data = torch.empty(1 << 12, dtype=torch.float32)
    patterns.fill_coded(data, 3)
    patterns.words(data)[1000] ^= 1
    said = patterns.check_coded(data, 3)
    assert said is not None and said.startswith("element 1000 is") and "1 of 4096 wrong" in said


def test_pieces_cover_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "STEP", 100)
    data = torch.empty(1050, dtype=torch.int32)
    patterns.fill_coded(data, 2)
    assert patterns.check_coded(data, 2) is None
    data[1049] += 1
    assert "element 1049" in (patterns.check_coded(data, 2) or "")
    total = summed(4, 1000, torch.float32)
    assert patterns.check_sum(total, 4) is None
