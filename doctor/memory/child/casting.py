"""Autocast as CUDA does it, for tensors that are fake CPU ones.

CPU autocast has lists of its own. Every operator that one of the two treats is given a kernel here that does
what CUDA's does, weights cast once per region included. The lists are those of ATen/autocast_mode.h.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from . import used

LOWER = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu",
    "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm",
    "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
)  # fmt: skip
WIDE = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm",
    "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d",
    "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
WIDE_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip
NORMS = ("norm.Scalar", "norm.ScalarOpt_dim")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class Autocast:
    """The kernels for one low-precision type, or for whichever the region that runs asks for."""

    def __init__(self, low: torch.dtype | None) -> None:
        self._fixed = low
        self._library = torch.library.Library("aten", "IMPL")
        self._casts: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def install(self) -> None:
        """Replace the kernels and the cache of cast weights; `autocast("cuda")` means this one."""
        ours = {
            **dict.fromkeys(LOWER, self._lower),
            **dict.fromkeys(WIDE, self._wide),
            **dict.fromkeys(WIDE_RESULT, self._wide_result),
            **dict.fromkeys(WIDEST, self._widest),
            **dict.fromkeys(NORMS, self._norm),
        }
        for name in _operators():
            kernel = ours.get(name)
            if kernel is not None and not torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", "AutocastCUDA"
            ):
                kernel = None  # a torch before this operator was put on CUDA's list
            has = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU")
            if kernel is None and not has:
                continue
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            ours_or_none = (
                torch.library.fallthrough_kernel if kernel is None else self._kernel(operator, kernel)
            )
            self._library.impl(name, ours_or_none, "AutocastCPU", allow_override=True)
        self._clearing()
        _cuda_is_cpu()

    @property
    def _low(self) -> torch.dtype:
        return self._fixed if self._fixed is not None else torch.get_autocast_dtype("cpu")

    def _kernel(self, operator: Any, treat: Any) -> Any:
        without = self._without

        def run(*args: Any, **kwargs: Any) -> Any:
            used.note("autocast")
            with torch._C._ExcludeDispatchKeyGuard(without):
                return operator(*treat(operator, args, kwargs)[0], **kwargs)

        return run

    def _lower(self, _: Any, args: Any, kwargs: Any) -> tuple[Any]:
        for key in kwargs:
            kwargs[key] = self._cast(kwargs[key], self._low)
        cast = [self._cast(a, self._low) for a in reversed(args)]  # C++ evaluates from the last argument
        return (tuple(reversed(cast)),)

    def _wide(self, _: Any, args: Any, kwargs: Any) -> tuple[Any]:
        for key in kwargs:
            kwargs[key] = self._cast(kwargs[key], torch.float32)
        return (self._cast(args, torch.float32),)

    def _wide_result(self, operator: Any, args: Any, kwargs: Any) -> tuple[Any]:
        positions = [i for i, a in enumerate(operator._schema.arguments) if a.name == "dtype"]
        given = kwargs.get("dtype") or (
            args[positions[0]] if positions and positions[0] < len(args) else None
        )
        first = args[0]
        if given is None and isinstance(first, torch.Tensor) and first.dtype in FLOATS and positions:
            args = args[: positions[0]]
            kwargs["dtype"] = torch.float32
        return (args,)

    def _norm(self, _: Any, args: Any, kwargs: Any) -> tuple[Any]:
        return (self._cast(args, torch.float32) if args[0].dtype in FLOATS else args,)

    def _widest(self, _: Any, args: Any, kwargs: Any) -> tuple[Any]:
        found = [a.dtype for a in _tensors(args) if a.dtype in FLOATS]
        wide = torch.float32 in found
        return (self._cast(args, torch.float32) if wide else args,)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype not in FLOATS or value.dtype == dtype:
                return value
            cached = (
                dtype == self._low
                and value.dtype == torch.float32
                and value.requires_grad
                and value.is_leaf
                and not value._is_view()
                and torch.is_autocast_cache_enabled()
            )
            if not cached:
                return value.to(dtype)
            found = self._casts.get(id(value))
            if found is not None and found[0]() is value:
                return found[1]
            cast = value.to(dtype)
            self._casts[id(value)] = (weakref.ref(value), cast)
            return cast
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(v, dtype) for v in value)
        return value

    def _clearing(self) -> None:
        real = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            self._casts.clear()
            real()

        torch.clear_autocast_cache = clear_autocast_cache


def _tensors(args: Any) -> Any:
    for a in args:
        if isinstance(a, torch.Tensor):
            yield a
        elif isinstance(a, (list, tuple)):
            yield from _tensors(a)


def _operators() -> list[str]:
    return [n[6:] for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]


def _cuda_is_cpu() -> None:
    real = torch.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        real(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    torch.autocast.__init__ = init
