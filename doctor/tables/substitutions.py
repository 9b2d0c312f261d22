"""How operators use memory on CUDA where that differs from what their shapes say, and how it is known.

The rules themselves run beside torch (`memory/child/choices.py`, `kernels.py`, `casting.py`); this table says
what each stands on, so that an answer can name the operators that it rests on by assumption only.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKED_ON = "2026-12-02"
SOURCES = (
    "H200, torch 2.11 + CUDA 13.0, cuDNN 9.19: 131 whole configurations and 851 single operators (measured)",
    "pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: order of attention backends",
    "pytorch aten/src/ATen/autocast_mode.h: operators that autocast treats",
)
MARGIN = 0.02
"""Part of the peak that is added before it is compared with a GPU: kernel workspaces that no rule has."""

MEASURED, DERIVED, ASSUMED = "measured", "derived", "assumed"


@dataclass(frozen=True, slots=True)
class Substitution:
    """One rule. Versions and architectures are the ones that it was seen with; others are taken alike."""

    operator: str
    what: str
    basis: str
    torch: str = "2.11"
    cudnn: str = ""
    sm: tuple[int, ...] = (90,)


SUBSTITUTIONS: tuple[Substitution, ...] = (
    Substitution("aten::rms_norm", "one fused kernel that saves one fp32 value per row", MEASURED),
    Substitution("aten::dropout", "fused kernel with a mask of one byte per element", MEASURED),
    Substitution("aten::softmax", "fp16 to fp32 in one kernel, other conversions by a copy", MEASURED),
    Substitution(
        "aten::scaled_dot_product_attention",
        "cuDNN, flash, efficient, math, in this order, by dtype, head size, mask and bias",
        MEASURED,
        cudnn="9.19",
    ),
    Substitution(
        "aten::scaled_dot_product_attention",
        "flash before cuDNN, efficient where there is a mask",
        DERIVED,
        sm=(80, 86, 89, 120),
    ),
    Substitution("aten::addmm", "cublasLt keeps 1 MiB per thread", MEASURED),
    Substitution("aten::convolution", "cuDNN's workspace by shape", ASSUMED, cudnn="9.19"),
    Substitution(
        "aten::_cudnn_rnn",
        "cuDNN's reserve and workspace by layout: 117 calls met to the byte",
        DERIVED,
        cudnn="9.19",
    ),
    Substitution("aten::embedding_dense_backward", "sorts more than 3,072 indices", DERIVED),
    Substitution("autocast", "CUDA's lists of operators and its cache of cast weights", DERIVED),
    Substitution("ddp", "gradient buckets by the reducer's own assignment", MEASURED),
)

UNMEASURED = frozenset(
    (
        "aten::_thnn_fused_lstm_cell",
        "aten::_thnn_fused_gru_cell",
        "aten::_ctc_loss",
        "aten::_fft_r2c",
        "aten::_fft_c2c",
        "aten::_fft_c2r",
        "aten::linalg_svd",
        "aten::_linalg_svd",
        "aten::linalg_inv_ex",
        "aten::linalg_cholesky_ex",
        "aten::grid_sampler_2d",
        "aten::grid_sampler_3d",
        "aten::unique_dim",
        "aten::_unique2",
    )
)
"""Operators of torch whose CUDA kernels need memory that no rule here has."""
OWN_SPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler")


def known(operator: str) -> bool:
    """Whether an operator, such as `aten::mm`, needs only what its results take or what a rule says."""
    return operator.partition("::")[0] in OWN_SPACES and operator not in UNMEASURED
