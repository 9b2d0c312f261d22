"""Memory that CUDA kernels take for the time of one call, and workspaces that library handles keep.

Each rule gives bytes for one call. Which rules were measured and which are assumed is said in
`fsdp_doctor.tables.substitutions`; the constants here are the ones of that table, handed over in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

aten = torch.ops.aten
MIB = 1 << 20
Rule = Callable[..., Sequence[int]]


def nbytes(t: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(t.numel()) * int(t.element_size())


class Kernels:
    """The rules for one kind of GPU."""

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.sm = int(gpu.get("sm", 90))
        self.lt_workspace = int(gpu.get("cublaslt_workspace", MIB))
        self._lt: set[bool] = set()
        self._rules: dict[str, Rule] = {
            "convolution": self._convolution,
            "convolution_backward": self._convolution_backward,
            "_scaled_dot_product_flash_attention_backward": _flash_backward,
            "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
            "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
            "embedding_dense_backward": _embedding_backward,
        }

    def workspaces(self, func: Any, args: Any, in_backward: bool) -> Iterator[tuple[int, str]]:
        """Workspaces that this call is the first to need; each thread has library handles of its own."""
        if func is aten.addmm.default and args[0].dim() == 1 and in_backward not in self._lt:
            self._lt.add(in_backward)
            yield self.lt_workspace, "cublasLt workspace"

    def temporaries(self, func: Any, args: Any, kwargs: Any) -> Sequence[int]:
        """Bytes of each block that the call takes and gives back."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return ()
        rule = self._rules.get(schema.name[6:])
        return rule(*args, **kwargs) if rule is not None else ()

    def _convolution(self, x: Any, w: Any, *_: Any, **__: Any) -> Sequence[int]:
        if x.dim() != 4 or x.is_contiguous(memory_format=torch.channels_last):
            return ()
        return nbytes(x), nbytes(w)

    def _convolution_backward(self, go: Any, x: Any, w: Any, *_: Any, **__: Any) -> Sequence[int]:
        if x.dim() != 4 or x.is_contiguous(memory_format=torch.channels_last):
            return ()
        return nbytes(go), nbytes(x)


def _flash_backward(go: Any, q: Any, k: Any, v: Any, out: Any, *_: Any, **__: Any) -> Sequence[int]:
    b, h, t, d = q.shape
    rows, columns = -(-t // 128) * 128, -(-d // 32) * 32
    copies = [nbytes(x) for x in (go, out) if not x.transpose(1, 2).is_contiguous()]
    return (*copies, b * h * rows * 4, b * rows * h * columns * 4)  # softmax_d, dq accumulated in fp32


def _cudnn_backward(go: Any, q: Any, k: Any, *rest: Any, **__: Any) -> Sequence[int]:
    b, h, t, d = q.shape
    dropout = len(rest) > 10 and rest[10] > 0
    scores = int(2.1 * b * h * t * k.shape[2]) if dropout else 0
    return (b * h * t * 4 + b * h * t * d * 4 + scores,)


def _efficient_backward(go: Any, q: Any, *_: Any, **__: Any) -> Sequence[int]:
    return (q.shape[0] * q.shape[1] * q.shape[2] * 4,)


def _embedding_backward(go: Any, indices: Any, *_: Any, **__: Any) -> Sequence[int]:
    return (indices.numel() * 8,) * 3 if indices.numel() > 3072 else ()
