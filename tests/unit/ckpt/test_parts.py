"""Small parts: coverage, checksums, places of DTensors, ranks in names, the tree, what is dangerous."""

from __future__ import annotations

import itertools
import os
import zlib
from array import array

import pytest

from fsdp_doctor.ckpt.checksums import combined
from fsdp_doctor.ckpt.coverage import Coverage, coverage, regions_overlap
from fsdp_doctor.ckpt.parting import local_place
from fsdp_doctor.ckpt.rank_names import rank_sets
from fsdp_doctor.ckpt.trust import trust_of
from fsdp_doctor.cli.ckpt.tree import chosen, grow, rows, size
from fsdp_doctor.subjects.checkpoint import Kind, Tensor, Trust


def judged(shape: tuple[int, ...], *boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Coverage:
    place = array("q")
    for offsets, sizes in boxes:
        place.extend((*offsets, *sizes, 0, 0, 0, 0))
    return coverage(shape, place)


def test_coverage() -> None:
    assert judged((4, 2), ((0, 0), (2, 2)), ((2, 0), (2, 2))).whole
    assert judged((4, 2), ((2, 0), (2, 2)), ((0, 0), (2, 2))).splits == (2, 1)
    grid = [((r, c), (2, 3)) for r in (0, 2) for c in (0, 3)]
    assert judged((4, 6), *grid).whole
    assert judged((4, 6), *grid[:3]).missing == 6
    assert judged((4, 6), *grid, ((1, 1), (2, 3))).overlap
    assert judged((4, 6), ((0, 0), (4, 7))).outside
    assert judged((4, 6), ((0, 0), (2, 6)), ((2, 0), (2, 3)), ((2, 3), (2, 3))).whole
    assert judged((4, 6), ((0, 0), (3, 6)), ((2, 0), (2, 6))).overlap
    assert judged((0, 6)).whole and judged((), ((), ())).whole
    assert judged(()).missing == 1 and judged((3,)).missing == 3


def test_coverage_agrees_with_counting() -> None:
    """Every way to lay three boxes on a small tensor."""
    options = [
        ((r, c), (h, w))
        for r in range(3)
        for c in range(2)
        for h in (1, 2, 3)
        for w in (1, 2)
        if r + h <= 3 and c + w <= 2
    ]
    for boxes in itertools.combinations(options, 3):
        cells = [0] * 6
        for (r, c), (h, w) in boxes:
            for y, x in itertools.product(range(r, r + h), range(c, c + w)):
                cells[2 * y + x] += 1
        result = judged((3, 2), *boxes)
        assert result.overlap == (max(cells) > 1), boxes
        assert bool(result.missing) == (min(cells) == 0) or result.overlap, boxes


def test_regions() -> None:
    assert regions_overlap(array("q", [0, 10, 20]), array("q", [10, 10, 5])) is None
    assert regions_overlap(array("q", [20, 0, 10]), array("q", [5, 11, 10])) == (0, 10)
    assert regions_overlap(array("q", [0, 0]), array("q", [0, 10])) is None


@pytest.mark.parametrize("length", [0, 1, 3, 64, 1000, 65537])
def test_checksums_of_parts_make_that_of_the_whole(length: int) -> None:
    first, second = os.urandom(99), os.urandom(length)
    assert combined(zlib.crc32(first), zlib.crc32(second), length) == zlib.crc32(first + second)


def test_places_of_dtensors() -> None:
    assert local_place((11, 8), ("Shard(0)",), (4,), 3, 4, (2, 8)) == (9, 0)
    assert local_place((11, 8), ("Shard(0)",), (4,), 3, 4, (3, 8)) is None
    assert local_place((8, 8), ("Replicate()", "Shard(0)"), (2, 2), 3, 4, (4, 8)) == (4, 0)
    assert local_place((8, 8), ("Shard(1)", "Shard(0)"), (2, 2), 2, 4, (4, 4)) == (0, 4)
    assert local_place((8, 8), ("_StridedShard(0)", "Shard(0)"), (2, 2), 1, 4, (2, 8)) is None
    assert local_place((8,), ("Shard(3)",), (2,), 0, 2, (4,)) is None
    assert local_place((8,), ("Shard(0)",), (), 0, 2, (4,)) is None


def test_ranks_in_names() -> None:
    (found,) = rank_sets(["model_world_size_4_rank_0.pt", "model_world_size_4_rank_3.pt"])
    assert found.named and found.world == 4 and found.missing == (1, 2)
    (found,) = rank_sets(["ckpt-rank-00.pt", "ckpt-rank-01.pt"])
    assert sorted(found.ranks) == [0, 1] and not found.missing
    (found,) = rank_sets(["epoch1.pt", "epoch2.pt"])
    assert not found.named
    assert rank_sets(["model.pt"]) == []
    (found,) = rank_sets(["model-0-of-3.pt", "model-1-of-3.pt", "model-2-of-3.pt"])
    assert sorted(found.ranks) == [0, 1, 2] and found.world == 3
    assert len(rank_sets(["model_rank0.pt", "optim_rank0.pt"])) == 2


@pytest.mark.parametrize(
    ("name", "trust"),
    [
        ("os.system", Trust.DANGEROUS),
        ("posix.system", Trust.DANGEROUS),
        ("builtins.eval", Trust.DANGEROUS),
        ("__builtin__.getattr", Trust.KNOWN),
        ("subprocess.Popen", Trust.DANGEROUS),
        ("torch.hub.load", Trust.DANGEROUS),
        ("torch.FloatStorage", Trust.TORCH),
        ("torch.float8_e4m3fn", Trust.TORCH),
        ("torch._utils._rebuild_tensor_v2", Trust.TORCH),
        ("torch.distributed.checkpoint.metadata.Metadata", Trust.TORCH),
        ("torch.distributed._shard.sharded_tensor.api.ShardedTensor", Trust.KNOWN),
        ("numpy.core.multiarray._reconstruct", Trust.KNOWN),
        ("argparse.Namespace", Trust.KNOWN),
        ("osiris.Model", Trust.UNKNOWN),
        ("my.os.system", Trust.UNKNOWN),
    ],
)
def test_trust(name: str, trust: Trust) -> None:
    assert trust_of(name) is trust


def tensor(key: str, shape: tuple[int, ...] = (2, 2)) -> Tensor:
    return Tensor(key, shape, "float32", name=key, bytes=16)


def test_the_tree_folds_what_is_alike() -> None:
    keys = [f"layers.{i}.{n}" for i in range(32) for n in ("w", "b")]
    lines = list(rows(grow(tensor(k) for k in keys), None))
    assert [label for _, label, _ in lines] == ["layers", "0-31", "w", "b"]
    assert "32 x 32 B, 64 tensors" in lines[1][2]
    odd = [tensor("layers.0.w"), tensor("layers.1.w", (3, 3)), tensor("layers.2.w")]
    assert [label for _, label, _ in rows(grow(odd), None)] == ["layers", "0.w", "1.w", "2.w"]
    assert len(list(rows(grow(tensor(k) for k in keys), 1))) == 1
    assert len(list(rows(grow([tensor("a" + ".b" * 5000)]), None))) == 1


def test_filters() -> None:
    some = [tensor("model.a.weight"), tensor("model.b.bias"), Tensor("o", (1,), "int64", Kind.OTHER)]
    assert [t.key for t in chosen(some, ("*.weight",), (), ())] == ["model.a.weight"]
    assert [t.key for t in chosen(some, ("b.b",), (), ())] == ["model.b.bias"]
    assert [t.key for t in chosen(some, (), ("other",), ())] == ["o"]
    assert [t.key for t in chosen(some, (), (), ("int64",))] == ["o"]


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1000, 1500, 123_456, 26 * 10**9)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "1.5 KB",
        "123 KB",
        "26.0 GB",
    ]
