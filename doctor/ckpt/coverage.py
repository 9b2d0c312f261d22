"""Whether the chunks of a tensor make it whole: inside of it, apart from each other, and nothing between."""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

PAIRS = 4000
"""Chunks of one irregular tensor that are compared with each other."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is wrong with the chunks of one tensor; all False for one that is whole."""

    outside: bool = False
    overlap: bool = False
    missing: int = 0
    """Elements that no chunk holds."""
    splits: tuple[int, ...] = ()
    """Distinct offsets per dimension."""

    @property
    def whole(self) -> bool:
        """Nothing is wrong."""
        return not (self.outside or self.overlap or self.missing)


def coverage(shape: tuple[int, ...], rows: array[int]) -> Coverage:
    """Judge the rows of `ChunkColumns` for a tensor of this shape."""
    dims = len(shape)
    width = 2 * dims + 4
    count = len(rows) // width
    if dims == 0:
        return Coverage(missing=0 if count else 1)
    offsets = [rows[d::width] for d in range(dims)]
    sizes = [rows[dims + d :: width] for d in range(dims)]
    # Of a million chunks, comparing whole columns costs a hundredth of looking at each number.
    zeros = _equal(0, count)
    uncut = [offsets[d] == zeros and sizes[d] == _equal(shape[d], count) for d in range(dims)]
    splits = tuple(min(count, 1) if uncut[d] else len(set(offsets[d])) for d in range(dims))
    if prod(shape) == 0:
        return Coverage(splits=splits)
    if not count:
        return Coverage(missing=prod(shape))
    cut = [d for d in range(dims) if not uncut[d]]
    if any(_outside(offsets[d], sizes[d], shape[d]) for d in cut):
        return Coverage(outside=True, splits=splits)
    if not cut:
        return Coverage(overlap=count > 1, splits=splits)
    if len(cut) == 1:
        d = cut[0]
        overlap, held = _along(offsets[d], sizes[d])
        missing = (shape[d] - held) * (prod(shape) // shape[d])
        return Coverage(False, overlap, missing, splits)
    return _several(shape, cut, offsets, sizes, splits)


def _equal(number: int, count: int) -> array[int] | None:
    return array("q", (number,)) * count if number < 1 << 63 else None


def _outside(offsets: Sequence[int], sizes: Sequence[int], length: int) -> bool:
    if min(offsets) < 0 or min(sizes) < 0:
        return True
    return max(offsets) + max(sizes) > length and any(
        o + s > length for o, s in zip(offsets, sizes, strict=True)
    )


def _along(offsets: array[int], sizes: array[int]) -> tuple[bool, int]:
    """Whether intervals overlap, and how much they hold together."""
    if _apart(offsets, sizes):
        return False, sum(sizes)
    end, held, overlap = 0, 0, False
    for start, size in sorted(zip(offsets, sizes, strict=True)):
        if not size:
            continue
        if start < end:
            overlap = True
        held += max(0, start + size - max(start, end))
        end = max(end, start + size)
    return overlap, held


def _several(
    shape: tuple[int, ...],
    cut: list[int],
    offsets: list[array[int]],
    sizes: list[array[int]],
    splits: tuple[int, ...],
) -> Coverage:
    """Chunks cut along several dimensions: a grid in nearly all cases."""
    boxes = [
        tuple((offsets[d][i], offsets[d][i] + sizes[d][i]) for d in cut)
        for i in range(len(offsets[0]))
        if all(sizes[d][i] for d in cut)
    ]
    overlap = len(set(boxes)) < len(boxes)
    if not overlap and not _grid(boxes, len(cut)):
        overlap = _pairs(boxes)
    per_box = prod(shape[d] for d in range(len(shape)) if d not in cut)
    held = sum(prod(e - s for s, e in b) for b in set(boxes))
    total = prod(shape[d] for d in cut)
    return Coverage(False, overlap, max(0, total - held) * per_box, splits)


def _grid(boxes: list[tuple[tuple[int, int], ...]], dims: int) -> bool:
    """Whether along every dimension equal or disjoint intervals occur: then distinct boxes are disjoint."""
    for d in range(dims):
        intervals = sorted({b[d] for b in boxes})
        if any(a[1] > b[0] for a, b in itertools.pairwise(intervals)):
            return False
    return True


def _pairs(boxes: list[tuple[tuple[int, int], ...]]) -> bool:
    boxes = sorted(boxes)[:PAIRS]
    for i, box in enumerate(boxes):
        for other in boxes[i + 1 :]:
            if other[0][0] >= box[0][1]:
                break
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(box, other, strict=True)):
                return True
    return False


def _apart(starts: array[int], lengths: array[int]) -> bool:
    """Whether they come in order and none reaches into the next, as they are written."""
    return not any(map(operator.gt, map(operator.add, starts, lengths), starts[1:]))


def regions_overlap(starts: array[int], lengths: array[int]) -> tuple[int, int] | None:
    """The first two items (starts) that claim the same bytes of a file."""
    if _apart(starts, lengths):
        return None
    end, before = -1, -1
    for start, length in sorted(zip(starts, lengths, strict=True)):
        if start < end and length:
            return before, start
        if length:
            end, before = max(end, start + length), start
    return None
