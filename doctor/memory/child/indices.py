"""What kernels that work by indices take for one call: embeddings, the largest values, scattering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from .course import Course, copied, counted_space, nbytes, scan_space, sort_space, unique_space

LONG_ROWS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""Rows, and the length of a row from which several blocks look for its largest values."""
SORTED_FROM = 3072
"""Indices above which the gradient of an embedding is made by sorting them."""
ROWS_PER_THREAD = 10
SORTED_AT_ONCE = 4096
"""Elements of a row that one block sorts by itself."""
MANY_TO_A_SEGMENT = 64
"""Indices to a row of the table from which its gradient needs no parts; seen at 128, not at 16."""


def embedding(weight: Any, indices: Any, *_: Any, **__: Any) -> Course:
    """A copy of indices that were spread, such as positions for every sample, while rows are chosen."""
    spread = indices.dim() > 1 and not indices.is_contiguous()
    return Course().take(nbytes(indices) if spread else 0).results()


def embedding_backward(go: Any, indices: Any, rows: Any, *_: Any, **__: Any) -> Sequence[int] | Course:
    """A copy of what is not contiguous; where the indices are sorted, parts of sums (Embedding.cu)."""
    n = int(indices.numel())
    course, spread = Course().take(copied(go)), copied(indices)
    return _sorted(course, go, n, int(rows), spread) if n > SORTED_FROM else course.take(spread).results()


def bag_results(args: Any, kwargs: Any, out: Any) -> Iterator[tuple[Any, int]]:
    """The bag of each index, and the largest of each bag, which the CPU needs by other modes."""
    mode = int(args[4] if len(args) > 4 else kwargs.get("mode", 0))
    yield out[1], int(args[1].numel()) * 8
    yield out[3], int(out[0].numel()) * 8 if mode == 2 else 0


def bag_backward(
    go: Any,
    indices: Any,
    _offsets: Any,
    _of: Any,
    _sizes: Any,
    _most: Any,
    rows: Any,
    _scale: Any,
    mode: Any,
    sparse: Any,
    *_: Any,
) -> Sequence[int] | Course:
    """As for an embedding, however few there are; the largest of a bag (mode 2) has its gradient at once."""
    n = int(indices.numel())
    if int(mode) == 2 or sparse or not n:
        return ()
    return _sorted(Course().take(copied(go)), go, n, int(rows))


def _sorted(course: Course, go: Any, n: int, rows: int, spread: int = 0) -> Course:
    """Go on with a course: sort, find the segments, add up their parts."""
    segments = min(n, rows)
    parts = n // ROWS_PER_THREAD + segments
    width = 4 * int(go.shape[-1])
    sums = [parts * width]
    if (
        n // segments >= MANY_TO_A_SEGMENT
    ):  # by the segment of each part, to the gradient at once if it is fp32
        sums = [8 * parts, segments * width if go.element_size() == 2 else 0]
    course.take(8 * n, 8 * n, spread, 8 * n)
    places = course.taken
    course.lend(sort_space(n)).give(places).results()
    course.take(8 * n, 8, 8 * n)
    firsts = course.taken
    course.lend(unique_space(n)).give(firsts)
    course.take(8 * segments, 8 * segments).lend(scan_space(segments)).take(8, 8 * parts)
    return course.take(*sums)


def topk(x: Any, k: Any, dim: int = -1, *_: Any, **__: Any) -> Sequence[int] | Course:
    """Counts of digits, where several blocks share the rows: few long rows, or very many."""
    long = int(x.shape[dim]) if x.dim() else 1
    rows = int(x.numel()) // max(1, long)
    shared = next((least for most, least in LONG_ROWS if rows <= most), 400)
    if long < shared:
        return ()
    blocks = rows * -(-long // 16384)
    counts = (512 * blocks, 1024 * blocks, 4 * blocks, 4 * blocks)
    course = Course().results().take(int(x.element_size()) * rows, 8 * rows, 8 * rows, *counts)
    return course.lend(counted_space(blocks)).lend(counted_space(blocks))


def sort(x: Any, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """Of long rows places as numbers, and what the sort takes; of others the places of one row."""
    dim = kwargs.get("dim", next((a for a in args if type(a) is int), -1))
    n = int(x.numel())
    long = int(x.shape[dim]) if x.dim() else 1
    if long <= SORTED_AT_ONCE:
        return (8 * long,)
    item = int(x.element_size())
    return (8 * n, sort_space(n, 8 * item, item))


def gathered(x: Any, indices: Any, *_: Any, **__: Any) -> Course:
    """Copies of indices that are spread over each other and lie differently (TensorAdvancedIndexing.cpp)."""
    return Course().take(*_spread(indices)).results()


def put(
    x: Any, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False, *_: Any, **__: Any
) -> Course:
    """Where values are added up, indices become numbers of rows and are sorted (Indexing.cu)."""
    course = Course()
    if not accumulate:
        return course.results().take(*_spread(indices))
    at = [d for d, i in enumerate(indices) if i is not None]
    chosen = [i for i in indices if i is not None]
    n = prod(torch.broadcast_shapes(*(i.shape for i in chosen)))
    course.results()
    running = torch._C._current_autograd_node()
    unsafe = unsafe or (running is not None and running.name() == "IndexBackward0")
    for _ in () if unsafe else chosen * 2:  # the largest and the smallest
        course.take(8).lend(1).give(course.taken - 1)
    for k in range(len(at)):
        course.take(8 * n, 8 * n)
        course.give(*((course.taken, course.taken - 1) if k else (course.taken - 1,)))
    beside = at == list(range(at[0], at[-1] + 1))
    inner = [s for d, s in enumerate(x.shape) if (d > at[-1] if beside else d not in at)]
    rows = (int(x.numel()) - 1) // max(1, prod(inner))
    course.take(copied(values), 0 if beside else nbytes(x))
    return course.take(8 * n, 8 * n, 8 * n).lend(sort_space(n, max(1, rows.bit_length())))


def _spread(indices: Any) -> list[int]:
    """Bytes of the copies of indices, where several are spread to a common shape in different ways."""
    some = [i for i in indices if i is not None and i.dtype not in (torch.bool, torch.uint8)]
    if len(some) < 2:
        return []
    shape = torch.broadcast_shapes(*(i.shape for i in some))
    wide = [i.expand(shape) for i in some]
    if len({tuple(i.stride()) for i in wide}) == 1:
        return []
    return [nbytes(i) for i in wide if not i.is_contiguous()]
