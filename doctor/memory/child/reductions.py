"""The buffer of a reduction that CUDA spreads over several blocks per output, as ATen's Reduce.cuh sizes it.

A sum over many rows, such as a bias's gradient, gives each output to several blocks; these leave partial
results in a buffer of up to 136 MiB. The launch is computed here as setReduceConfig does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

WARP = 32
THREADS = 512
PER_MULTIPROCESSOR = 2048
FEWEST_VALUES, MOST_VALUES = 16, 256
VECTOR = 4


def buffers(x: Any, dims: Iterable[int] | None, processors: int, item: int = 4) -> tuple[int, ...]:
    """Bytes of the partial results and of the semaphores; empty where one block serves an output."""
    rank = x.dim()
    chosen = {d % rank for d in dims} if dims and rank else set(range(rank))
    pairs = [(int(s), int(n), i in chosen) for i, (n, s) in enumerate(zip(x.shape, x.stride())) if n != 1]  # noqa: B905
    reduced = _joined(sorted((s, n) for s, n, r in pairs if r))
    kept = _joined(sorted((s, n) for s, n, r in pairs if not r))
    inputs, outputs = _product(reduced), _product(kept)
    if not reduced or not inputs or not outputs:
        return ()
    fastest = not kept or reduced[0][0] < kept[0][0]
    width, height = (inputs, outputs) if fastest else (outputs, inputs)
    vector = 1
    if (reduced if fastest else kept)[0][0] == 1:
        if fastest:
            if width > 128 and not kept and len(reduced) == 1:
                width //= VECTOR
        else:
            vector = _vector(x, reduced, kept)
            width //= vector
    most = THREADS // vector
    wide, high = min(power_of_two(width), most), min(power_of_two(height), most)
    block_width = min(wide, WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_in = step_out = 1
    if fastest:
        step_in *= block_width
    else:
        step_out *= block_width
    values = -(-inputs // step_in)
    across_warps = values >= min(block_height * 16, MOST_VALUES)
    if across_warps:
        step_in *= block_height
    else:
        step_out *= block_height
    values = -(-inputs // step_in)
    grid = -(-(outputs // vector) // step_out)
    target = processors * (PER_MULTIPROCESSOR // (block_width * block_height))
    if not across_warps or values < MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // FEWEST_VALUES)), -(-values // MOST_VALUES))
    if blocks <= 1:
        return ()
    size = item * outputs * blocks
    return (size if fastest else size * block_width * vector, 4 * grid)


def _joined(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, length) of dimensions with those joined that follow each other in memory."""
    found: list[tuple[int, int]] = []
    for stride, length in dims:
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = (found[-1][0], found[-1][1] * length)
        else:
            found.append((stride, length))
    return found


def _vector(x: Any, reduced: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    size = VECTOR
    for value in (x.storage_offset(), kept[0][1], *(s for s, _ in reduced), *(s for s, _ in kept[1:])):
        while value % size:
            size //= 2
    return size


def _product(dims: list[tuple[int, int]]) -> int:
    n = 1
    for _, length in dims:
        n *= length
    return n


def power_of_two(n: int) -> int:
    """The largest that is not above n; 1 for none."""
    return 1 << (max(1, n).bit_length() - 1)
