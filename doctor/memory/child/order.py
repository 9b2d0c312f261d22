"""Order and small blocks inside calls: which free block a later tensor gets follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch

aten = torch.ops.aten

FIRST = {
    aten.native_dropout.default: (1,),  # the mask: Dropout.cu
    aten._scaled_dot_product_cudnn_attention.default: (6, 7),  # seed and offset of dropout: attention.cu
    aten._embedding_bag.default: (2, 1),  # sizes of the bags, bag of each index: EmbeddingBag.cu
}
"""Results, by position, that CUDA allocates before the others."""
BYTES_PER_BLOCK = 128 * 16
"""That one block of threads copies at a time (TensorShape.cu)."""
WORD = 8


def in_order(func: Any, out: Any) -> Any:
    """The results of a call as CUDA allocates them."""
    first = FIRST.get(func)
    if first is None:
        return out
    return [*(out[i] for i in first), *(r for i, r in enumerate(out) if i not in first)]


class Packing:
    """FSDP2 copies all parameters of a unit in one launch; where to and from goes along in one block.

    TensorShape.cu packs addresses, sizes and the share of each block of threads into 64-bit words: of
    `split_with_sizes_copy` after an all-gather, and of `_chunk_cat` before a reduce-scatter.
    """

    def __init__(self, processors: int, threads: int = 2048) -> None:
        self._most = processors * threads // 128 * 2

    def copy_out(
        self, gathered: Any, sizes: Sequence[int], dim: int = 0, *, out: Sequence[Any]
    ) -> Sequence[int]:
        """Gathered (ranks, elements of all parameters) and the elements of each."""
        chunks = int(gathered.shape[0]) if gathered.dim() > 1 else 1
        item = int(gathered.element_size())
        parts = [int(s) * item for s in sizes if s]
        if any(t.dtype != gathered.dtype for t in out):
            return ()
        blocks = sum(_up(p, BYTES_PER_BLOCK) for p in parts)
        rounds = _up(blocks * chunks, self._most)
        at_once = min(isqrt(max(rounds, 1) - 1) + 1, chunks)  # the square root, rounded up
        grain = BYTES_PER_BLOCK * _up(rounds, at_once)
        return (WORD * (4 * len(parts) + 1 + sum(_up(p, grain) for p in parts)),)

    def copy_in(self, gradients: Sequence[Any], dim: int, chunks: int, *, out: Any) -> Sequence[int]:
        """Unsharded gradients, padded to whole chunks of rows: (chunks, elements of all) in `out`'s type."""
        kinds = {g.dtype for g in gradients}
        widened = kinds == {torch.bfloat16} and out.dtype == torch.float32
        if dim or not (widened or kinds == {out.dtype}):
            return ()
        blocks = 0
        for g in gradients:
            rows = int(g.shape[0]) if g.dim() else 1
            row = int(g.numel()) // max(1, rows) * int(out.element_size())
            blocks += _up(_up(rows, chunks) * row, BYTES_PER_BLOCK)
        return (WORD * (6 * len(gradients) + 2 + blocks),)


def _up(n: int, by: int) -> int:
    return -(-n // by)
