"""Composite operators take the way on fake CPU tensors that they take on CUDA.

Where an operator has another implementation on CUDA (a fused kernel, another attention backend), the
`AutogradCPU` kernel is replaced by one that calls the operators which CUDA would call: what these save for
backward then comes from torch itself. The overrides hold for the whole process.
"""

from __future__ import annotations

from typing import Any

import torch

from . import engine_sums, recurrent_weights, used
from .recurrent import Recurrence
from .recurrent_cells import gru_cell, lstm_cell

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


class FusedRMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """CUDA's `_fused_rms_norm`, which on CPU is a composite that keeps fp32 copies."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, shape: Any) -> Any:
        """Saves the input, the weight and one fp32 value per row."""
        rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, x.new_empty(rows, dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        wants = weight is not None and ctx.needs_input_grad[1]
        return torch.empty_like(x), torch.empty_like(weight) if wants else None, None


class GroupedMM(torch.autograd.Function):  # type: ignore[misc]
    """Rows of x in groups, each times a matrix of its own; torch's fake form takes bf16 only."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, offs: Any) -> Any:
        """Rows (n, k), matrices (groups, k, m): (n, m)."""
        ctx.save_for_backward(x, w, offs)
        return _grouped(x.new_empty((x.shape[0], w.shape[2])), w)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of matrices and rows, in this order."""
        x, w, _ = ctx.saved_tensors
        of_w = _grouped(torch.empty_like(w), w) if ctx.needs_input_grad[1] else None
        return _grouped(torch.empty_like(x), w) if ctx.needs_input_grad[0] else None, of_w, None


def _grouped(result: Any, w: Any) -> Any:
    """A result, beside which CUTLASS takes the problem of each group and a workspace (GroupMM.cu)."""
    if result.dtype == torch.bfloat16:
        problems = result.new_empty(60 * w.shape[0], dtype=torch.uint8)
        space = result.new_empty(67584, dtype=torch.uint8)
        del space, problems
    return result


def grouped_mm(x: Any, w: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """The form with rows in groups; the others stay torch's own."""
    if x.dim() == 2 and w.dim() == 3 and bias is None:
        return GroupedMM.apply(x, w, offs)
    raise NotImplementedError("_grouped_mm of these shapes has no fake form here")


class Choices:
    """The overrides for one kind of GPU."""

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.sm = int(gpu.get("sm", 90))
        self.cudnn_attention = bool(gpu.get("cudnn_attention", self.sm // 10 in (9, 10)))
        self.recurrence = Recurrence(self.sm, int(gpu.get("processors", 132)))
        self._library = torch.library.Library("aten", "IMPL")

    def install(self) -> None:
        """Replace the kernels."""
        recurrent_weights.install()
        for name, kernel in self.kernels().items():
            operator = name.partition(".")[0]
            if hasattr(aten, operator):
                noted = kernel if kernel is linear else _noting(f"aten::{operator}", kernel)
                self._library.impl(name, noted, "AutogradCPU", allow_override=True)

    def kernels(self) -> dict[str, Any]:
        """By operator and overload."""
        return {
            "dropout": dropout,
            "dropout_": dropout_,
            "linear": linear,
            "rms_norm": rms_norm,
            "softmax.int": softmax,
            "log_softmax.int": log_softmax,
            "scaled_dot_product_attention": self.attention,
            "_grouped_mm": grouped_mm,
            "lstm_cell": lstm_cell,
            "gru_cell": gru_cell,
            **self.recurrence.kernels(),
        }

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """scaled_dot_product_attention by CUDA's selection: cuDNN, flash, efficient, math."""
        more: dict[str, Any] = {} if scale is None else {"scale": scale}
        same = q.dtype == k.dtype == v.dtype
        d, dv = q.shape[-1], v.shape[-1]
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        mask = attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(
                mask, torch.zeros((), dtype=q.dtype), torch.full((), float("-inf"), dtype=q.dtype)
            )
        if q.dim() == 4 and same and min(q.shape[2], k.shape[2]) > 0 and _heads(q, k, v, enable_gqa):
            if mask is not None and mask.dim() < 4:
                mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
            bias_grad = grad and mask is not None and mask.requires_grad
            straight = all(t.stride(-1) == 1 for t in (q, k, v))
            mask_straight = mask is None or mask.stride(-1) == 1
            if (
                not bias_grad
                and self.cudnn_attention
                and q.dtype in HALF
                and d % 8 == 0
                and dv % 8 == 0
                and max(d, dv) <= (256 if self.sm // 10 == 9 else 128)
                and k.shape[2] > 1
                and not (q.shape[2] == 1 and dropout_p > 0)
                and straight
                and (mask_straight or mask.shape[-1] == 1)
            ):
                return aten._scaled_dot_product_cudnn_attention(
                    q, k, v, mask, grad, dropout_p, is_causal, False, **more
                )[0]
            if mask is None and q.dtype in HALF and d == dv and d <= 256 and self.sm >= 80 and straight:
                pad = -d % 8
                if pad:
                    more.setdefault("scale", d**-0.5)
                    q, k, v = (torch.nn.functional.pad(t, (0, pad)) for t in (q, k, v))
                out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, **more)[
                    0
                ]
                return out[..., :d] if pad else out
            align = 8 if q.dtype in HALF else 4
            usable = q.dtype != torch.float64 and d % align == 0 and dv % align == 0
            if usable and straight and mask_straight and q.shape[1] == k.shape[1]:
                if mask is not None:
                    n = mask.shape[-1]
                    if n % 8:
                        mask = torch.nn.functional.pad(mask, (0, -n % 8))[..., :n]
                    mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
                return aten._scaled_dot_product_efficient_attention(
                    q, k, v, mask, grad, dropout_p, is_causal, **more
                )[0]
        with engine_sums.of_scores():
            return aten._scaled_dot_product_attention_math(
                q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]


def _noting(operator: str, kernel: Any) -> Any:
    """The kernel, which is noted where it does not just hand on its input, as a dropout of nothing does."""

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        out = kernel(x, *args, **kwargs)
        if out is not x or operator == "aten::dropout_":
            used.note(operator)
        return out

    return run


def _heads(q: Any, k: Any, v: Any, grouped: bool) -> bool:
    """Whether the fused kernels take these batches and heads; they broadcast neither."""
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        return False
    return bool(q.shape[1] == k.shape[1] or (grouped and q.shape[1] % k.shape[1] == 0))


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Where rows do not lie side by side the bias is added in place, which torch avoids for subclasses."""
    if bias is None or bias.dim() != 1 or x.dim() < 3 or x.is_contiguous():
        return aten.linear.default.decompose(x, weight, bias)
    used.note("aten::linear")
    return torch.matmul(x, weight.t()).add_(bias)


def dropout(x: Any, p: float, train: bool) -> Any:
    """CUDA has a fused kernel that keeps a mask of one byte per element."""
    if p == 0 or not train or x.numel() == 0:
        return x
    if p == 1:
        return x * torch.zeros((), dtype=x.dtype)
    return aten.native_dropout(x, p, True)[0]


def dropout_(x: Any, p: float, train: bool) -> Any:
    """In place there is no fused kernel."""
    if p == 0 or not train or x.numel() == 0:
        return x
    return x.mul_(torch.empty_like(x).bernoulli_(1 - p).div_(1 - p))


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Fused where input and weight have one dtype, else composite as on CPU."""
    if weight is not None and weight.dtype != x.dtype:
        wide = x.float()
        squares = wide.pow(2)
        mean = squares.mean([-i - 1 for i in range(len(shape))], keepdim=True)
        factor = torch.rsqrt(mean.add_(1e-6))
        del mean, squares
        return (wide * factor * weight).to(x.dtype)
    return FusedRMSNorm.apply(x, weight, shape)


def softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """CUDA reads fp16 and writes fp32 in one kernel; every other conversion makes a copy."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return aten._softmax(x, dim, True)
    return aten._softmax(x if dtype is None else x.to(dtype), dim, False)


def log_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """As `softmax`."""
    if x.dtype == torch.float16 and dtype == torch.float32:
        return aten._log_softmax(x, dim, True)
    return aten._log_softmax(x if dtype is None else x.to(dtype), dim, False)
