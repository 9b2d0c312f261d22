"""The blocks of one call in their order: taken and given back before and after its results are allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SORTED_BY_ONE = 2304
"""Pairs that one block of threads sorts by itself; seen at 512, not at 3,073."""
RESULTS = 0
FIRST_RESULT = -(1 << 40)
"""Below any step that gives a block back; with n added, the n-th result alone."""


class Course:
    """Steps of one call; what is not given back by then is at its end, the last block first as in C++."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        """Bytes to take, `RESULTS`, `FIRST_RESULT` and more; -k gives back the k-th block taken."""
        self.taken = 0
        """How many blocks were."""

    def take(self, *sizes: int) -> Course:
        """Blocks of so many bytes; none for nothing."""
        for size in filter(None, sizes):
            self.steps.append(size)
            self.taken += 1
        return self

    def hold(self, *sizes: int) -> list[int]:
        """Blocks of so many bytes, none for nothing; their numbers, the last first, for `give`."""
        before = self.taken
        self.take(*sizes)
        return list(range(self.taken, before, -1))

    def lend(self, size: int) -> Course:
        """A block that is given back at once, such as what a sort needs."""
        return self.take(size).give(self.taken) if size else self

    def give(self, *blocks: int) -> Course:
        """Give back the blocks that were taken as the so manieth, from one."""
        self.steps.extend(-block for block in blocks)
        return self

    def results(self) -> Course:
        """Here the results are allocated."""
        self.steps.append(RESULTS)
        return self

    def result(self, n: int) -> Course:
        """Here the n-th result is allocated, from zero; a call names all of its results or none."""
        self.steps.append(FIRST_RESULT + n)
        return self


def nbytes(t: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(t.numel()) * int(t.element_size())


def copied(t: Any) -> int:
    """Bytes of the copy that makes a tensor contiguous, such as a part of what was concatenated."""
    return 0 if t.is_contiguous() else nbytes(t)


def sort_space(n: int, bits: int = 64, key: int = 8) -> int:
    """Bytes to sort n keys and 64-bit words by some bits of the key: cub's radix sort, as an H200 took it."""
    if n <= SORTED_BY_ONE:
        return 1
    passes = -(-bits // 8)
    pairs = _parts(key * n) + _parts(8 * n) if passes > 1 else 0  # one pass goes to the result at once
    return pairs + 2048 * passes + 1024 * -(-n // (4608 if key == 8 else 5376)) + 511


def unique_space(n: int) -> int:
    """Bytes to find the first of equal keys among n; as `sort_space`."""
    return _scanned(n, 4608)


def scan_space(n: int, item: int = 8) -> int:
    """Bytes for running sums of n numbers; as `sort_space`."""
    return _scanned(n, 896 if item == 8 else 1920, 16 if item == 8 else 8)


def counted_space(n: int) -> int:
    """Bytes for running sums of n counts by key; as `sort_space`."""
    return _scanned(n, 2688)


def _scanned(n: int, at_once: int, each: int = 16) -> int:
    """What cub's pass over n elements notes: 16 bytes for each tile, and for a warp more."""
    return 511 + _parts((-(-n // at_once) + 32) * each)


def _parts(size: int) -> int:
    """In parts of 256 bytes."""
    return -(-size // 256) * 256


def stages(*blocks: Sequence[int]) -> list[int]:
    """Steps where results come first and each stage gives its blocks back before the next begins."""
    course = Course().results()
    for stage in blocks:
        before = course.taken
        for k in range(course.take(*stage).taken, before, -1):
            course.give(k)
    return course.steps
