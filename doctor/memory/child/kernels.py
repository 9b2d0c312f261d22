"""Memory that CUDA kernels take for the time of one call, and workspaces that library handles keep.

Each rule gives bytes for one call. Which rules were measured and which are assumed is said in
`fsdp_doctor.tables.substitutions`; the constants here are the ones of that table, handed over in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .reductions import buffers

aten = torch.ops.aten
MIB = 1 << 20
Rule = Callable[..., Sequence[Any]]


def nbytes(t: Any) -> int:
    """Bytes of a tensor's elements."""
    return int(t.numel()) * int(t.element_size())


HALF = (torch.float16, torch.bfloat16)
REDUCED = frozenset(
    ("sum", "mean", "linalg_vector_norm", "norm", "amax", "amin", "prod", "any", "all", "max", "min")
)
ACCUMULATORS = {torch.int64: 8, torch.float64: 8, torch.bool: 1, torch.uint8: 1}
SORTED_FROM = 3072
"""Indices above which the gradient of an embedding is made by sorting them."""
ROWS_PER_THREAD = 10
NARROW = 8
"""Channels are padded to a multiple of this in tensor-core convolutions."""


class Kernels:
    """The rules for one kind of GPU."""

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.sm = int(gpu.get("sm", 90))
        self.processors = int(gpu.get("processors", 132))
        self.lt_workspace = int(gpu.get("cublaslt_workspace", MIB))
        self._lt: set[bool] = set()
        self._rules: dict[str, Rule] = {
            "convolution": _convolution,
            "convolution_backward": _convolution_backward,
            "_scaled_dot_product_flash_attention_backward": _flash_backward,
            "_scaled_dot_product_cudnn_attention": _cudnn_forward,
            "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
            "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
            "embedding_dense_backward": _embedding_backward,
            "_softmax_backward_data": _softmax_backward,
            "_grouped_mm": _grouped_mm,
            "native_batch_norm_backward": _batch_norm_backward,
            "_index_put_impl_": _index_put,
            "index_put_": _index_put,
            "index_put": _index_put,
            **dict.fromkeys(REDUCED, self._reduction),
        }

    def workspaces(self, func: Any, args: Any, in_backward: bool) -> Iterator[tuple[int, str]]:
        """Workspaces that this call is the first to need; each thread has library handles of its own."""
        if func is aten.addmm.default and args[0].dim() == 1 and in_backward not in self._lt:
            self._lt.add(in_backward)
            yield self.lt_workspace, "cublasLt workspace"

    def temporaries(self, func: Any, args: Any, kwargs: Any) -> Sequence[Sequence[int]]:
        """Bytes of the blocks that the call takes beside its results and gives back, stage by stage."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            return ()
        rule = self._rules.get(schema.name[6:])
        if rule is None:
            return ()
        found = rule(*args, **kwargs)
        return found if found and isinstance(found[0], tuple) else (found,)

    def _reduction(self, x: Any, *args: Any, **kwargs: Any) -> Sequence[int]:
        if not isinstance(x, torch.Tensor):
            return ()
        dims = next((a for a in args if isinstance(a, (list, tuple))), None)
        if dims is None:
            dims = kwargs.get("dim")
        if isinstance(dims, int):
            dims = [dims]
        dtype = kwargs.get("dtype") or x.dtype
        if x.dtype in (torch.bool, torch.int32, torch.int16, torch.int8, torch.uint8) and dtype == x.dtype:
            dtype = torch.int64
        made = buffers(x, dims, self.processors, ACCUMULATORS.get(dtype, 4))
        widened = dtype != x.dtype and not (x.dtype in HALF and dtype == torch.float32)
        return (x.numel() * dtype.itemsize, *made) if widened else made


def _grouped_mm(x: Any, *_: Any, **__: Any) -> Sequence[int]:
    return (480, 67584) if x.dtype == torch.bfloat16 else ()


def _softmax_backward(go: Any, output: Any, *_: Any, **__: Any) -> Sequence[int]:
    return (nbytes(output),)


def _convolution(
    x: Any,
    w: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    *rest: Any,
    **__: Any,
) -> Sequence[int]:
    groups = rest[-1]
    if _as_it_is(x, w, transposed, groups):
        return ()
    kernel = w.shape[2:]
    if _one(kernel):
        return (
            ()
            if x.shape[0] * x[0, 0].numel() > 1 << 13
            else (nbytes(x), x.numel() // x.shape[1] * w.shape[0] * x.element_size())
        )
    if not transposed and x.shape[1] < 4 and _small(kernel) and x.element_size() == 2:
        return ()  # a first layer of few channels has a kernel that needs no copies
    if transposed:
        made = x.shape[0] * w.shape[1] * groups
        for n, k, s, p in zip(x.shape[2:], kernel, stride, padding):  # noqa: B905
            made *= (n - 1) * s - 2 * p + k
    else:
        made = x.shape[0] * w.shape[0]
        for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation):  # noqa: B905
            made *= (n + 2 * p - d * (k - 1) - 1) // s + 1
    return (_padded(x, 1) + made * x.element_size() + _padded(w, 1),)


def _convolution_backward(go: Any, x: Any, w: Any, *args: Any, **__: Any) -> Sequence[int]:
    transposed, groups, mask = args[4], args[6], args[7]
    if _as_it_is(x, w, transposed, groups):
        if mask[2]:
            return buffers(go, [0, *range(2, go.dim())], 132)
        return ()
    copies = _padded(x, 1) + _padded(go, 1) + _padded(w, 1)
    wide = w.numel() * 4
    places = go.numel() // go.shape[1]
    if _one(w.shape[2:]):
        if not mask[1]:
            return ()
        return (16 * wide,) if x.dim() == 4 and places > 1 << 13 else (copies + wide,)
    if not mask[1]:
        return (copies,)
    parts = 13 if places >= 1 << 18 or wide < 1 << 18 else 1
    return (copies + min(parts * wide, 15 * MIB + MIB * 3 // 4),)


def _as_it_is(x: Any, w: Any, transposed: Any, groups: Any) -> bool:
    """Whether cuDNN or a kernel of torch's takes the tensors without copies in another layout."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.shape[1] > 1:
        return True
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and x.shape[1] > 1:
        return True
    return bool(groups > 1 and groups == x.shape[1] and not transposed)


def _one(kernel: Any) -> bool:
    return all(k == 1 for k in kernel)


def _small(kernel: Any) -> bool:
    return all(k <= 3 for k in kernel)


def _padded(t: Any, channel: int) -> int:
    """Bytes with the channels rounded up."""
    channels = t.shape[channel]
    return nbytes(t) // channels * (-(-channels // NARROW) * NARROW) if channels else 0


def _flash_backward(go: Any, q: Any, k: Any, v: Any, out: Any, *_: Any, **__: Any) -> Sequence[int]:
    b, h, t, d = q.shape
    rows, columns = -(-t // 128) * 128, -(-d // 32) * 32
    copies = [nbytes(x) for x in (go, out) if not x.transpose(1, 2).is_contiguous()]
    return (*copies, b * h * rows * 4, b * rows * h * columns * 4)  # softmax_d, dq accumulated in fp32


def _cudnn_forward(*_: Any, **__: Any) -> Sequence[int]:
    return (256,)


def _cudnn_backward(go: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Sequence[int]:
    """fp32 dq, one value per row; with fewer heads of k and v than of q, dk and dv for every head of q."""
    b, h, t, d = q.shape
    shared = b * h * k.shape[2] * (d + v.shape[3]) * q.element_size() if k.shape[1] != h else 0
    return (b * h * t * 4 + b * h * t * d * 4 + 256 + shared,)


def _efficient_backward(go: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Sequence[Any]:
    b, h, t, d = q.shape
    block = 128 if q.element_size() == 2 and d > 64 else 64
    rows = -(-t // block) * block
    wide = 64 if d <= 64 else 128 if d <= 128 else d
    space = b * h * (rows * wide * 4 + rows // block * 16)
    if d > 128:
        space = space * 5 // 2
    delta = b * h * t * 4
    if q.dtype == torch.float32:
        return ((nbytes(q), delta, delta), (delta, space))
    return (delta, space)


def _embedding_backward(go: Any, indices: Any, rows: Any, *_: Any, **__: Any) -> Sequence[int]:
    n = int(indices.numel())
    if n <= SORTED_FROM:
        return ()
    segments = min(n, int(rows))
    parts = n // ROWS_PER_THREAD + segments
    width = -(-int(go.shape[-1]) // 32) * 32
    return (8 * n, 8 * n, 8 * n, 8 * segments, 8 * segments, 8, 8, 8 * parts, parts * width * 4)


def _batch_norm_backward(go: Any, x: Any, weight: Any, mean: Any, *_: Any, **__: Any) -> Sequence[int]:
    """CUDA's check of types, which the CPU lets pass: cast parameters beside buffers that are not."""
    if weight is not None and mean is not None and weight.dtype in HALF and mean.dtype != weight.dtype:
        names = {torch.bfloat16: "BFloat16", torch.float16: "Half"}
        raise RuntimeError(f"Expected running_mean to have type {names[weight.dtype]} but got Float")
    return ()


def _index_put(
    x: Any, indices: Any, values: Any, accumulate: bool = False, *_: Any, **__: Any
) -> Sequence[int]:
    if not accumulate:
        return ()
    n = max((int(i.numel()) for i in indices if i is not None), default=0)
    return (8 * n,) * 5
