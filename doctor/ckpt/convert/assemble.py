"""The bytes of a whole tensor, in order, from the parts that hold it: blocks, never the tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

from fsdp_doctor.ckpt.convert.cast import cast
from fsdp_doctor.ckpt.convert.cursor import BLOCK, Cursor, Files, Piece
from fsdp_doctor.ckpt.convert.model import TensorLeaf
from fsdp_doctor.tables.torch_dtypes import item_bytes

SLAB = 2 * BLOCK
Placed = tuple[tuple[int, ...], tuple[int, ...], Cursor]
"""Offsets and sizes within a region, and what reads it."""


def values(files: Files, leaf: TensorLeaf) -> Iterator[Piece]:
    """The values of a tensor in row-major order, cast where the leaf says so. Raises `ConvertError`."""
    placed = [(s.offsets, s.sizes, Cursor(files, s, leaf.dtype)) for s in leaf.sources]
    yield from casting(region(leaf.shape, placed, item_bytes(leaf.dtype) or 1), leaf)


def casting(pieces: Iterator[Piece], leaf: TensorLeaf) -> Iterator[Piece]:
    """The same pieces, in the dtype that the leaf is written in."""
    if leaf.to is None or leaf.to == leaf.dtype:
        yield from pieces
        return
    for view, _ in pieces:
        yield memoryview(cast(view, leaf.dtype, leaf.to)), None


def region(shape: tuple[int, ...], placed: Sequence[Placed], item: int) -> Iterator[Piece]:
    """One region. Every cursor is read from front to back, whatever the cut."""
    if not prod(shape):
        return
    if not shape:
        yield from placed[0][2].blocks(item)
        return
    if all(sizes[1:] == shape[1:] for _, sizes, _ in placed):
        for _, sizes, cursor in sorted(placed, key=lambda p: p[0][:1]):
            yield from cursor.blocks(prod(sizes) * item)
        return
    row = prod(shape[1:]) * item
    if row > SLAB:
        for at in range(shape[0]):
            inner = [(o[1:], s[1:], c) for o, s, c in placed if o[0] <= at < o[0] + s[0]]
            yield from region(shape[1:], inner, item)
        return
    step = max(1, SLAB // row)
    slab = memoryview(bytearray(step * row))
    for first in range(0, shape[0], step):
        last = min(first + step, shape[0])
        view = slab[: (last - first) * row]
        for offsets, sizes, cursor in placed:
            begin, end = max(first, offsets[0]), min(last, offsets[0] + sizes[0])
            if begin < end:
                _scatter(view, shape[1:], begin - first, end - begin, offsets[1:], sizes[1:], cursor, item)
        for at in range(0, len(view), BLOCK):
            yield view[at : at + BLOCK], None


def _scatter(
    view: memoryview,
    shape: tuple[int, ...],
    begin: int,
    rows: int,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    cursor: Cursor,
    item: int,
) -> None:
    """Write some rows of a part to their places in a slab."""
    whole = len(shape)
    while whole and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
    # Dimensions from `whole` on are whole: a run goes over them and over the cut one before.
    run = prod(sizes[max(whole - 1, 0) :]) * item
    strides = [prod(shape[d + 1 :]) * item for d in range(len(shape))]
    row = prod(shape) * item
    held = memoryview(bytearray(rows * prod(sizes) * item))
    cursor.into(held)
    at = 0
    inner = offsets[max(whole - 1, 0)] * strides[max(whole - 1, 0)] if shape else 0
    outer = (
        [range(o, o + s) for o, s in zip(offsets[: whole - 1], sizes[: whole - 1], strict=True)]
        if whole
        else []
    )
    places = [sum(i * s for i, s in zip(where, strides, strict=False)) for where in itertools.product(*outer)]
    for number in range(begin, begin + rows):
        base = number * row + inner
        for place in places:
            view[base + place : base + place + run] = held[at : at + run]
            at += run
