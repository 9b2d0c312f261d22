"""Attention: the choice of a backend, and what each takes."""

from __future__ import annotations

from fsdp_doctor.tables.substitutions.entry import ASSUMED, MEASURED, Substitution

SDPA = "aten::scaled_dot_product_attention"
CUDNN = "aten::_scaled_dot_product_cudnn_attention"
FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
GRID = "of 290 calls 282 met within 0.1 %, the others within 10 %"
ROWS = "the result, one fp32 value per row of scores, the state of the random numbers"

ENTRIES = (
    Substitution(
        (SDPA,),
        "cuDNN, flash, efficient, math, in this order, by dtype, head size, mask, bias and its gradient",
        MEASURED,
        GRID,
        saves="what the chosen backend saves; math keeps the scores",
        workspace="a mask of the scores' type where a bool one was given",
        cudnn="9.19",
    ),
    Substitution(
        (SDPA,),
        "flash before cuDNN, efficient where there is a mask, math",
        ASSUMED,
        "sdp_utils.cpp: cuDNN goes first on sm 90 and 100 alone",
        saves="what the chosen backend saves; math keeps the scores",
        workspace="a mask of the scores' type where a bool one was given",
        sm=(70, 75, 80, 86, 89, 120),
    ),
    Substitution((CUDNN,), "cuDNN", MEASURED, GRID, saves=ROWS, workspace="256 bytes", cudnn="9.19"),
    Substitution(
        (CUDNN + "_backward",),
        "cuDNN",
        MEASURED,
        GRID,
        workspace="the gradient of q in fp32, one value per row; dk and dv per head of q if shared",
        cudnn="9.19",
    ),
    Substitution(
        (FLASH + "_backward",),
        "flash attention 2",
        MEASURED,
        GRID,
        workspace="the gradient of q in fp32 and one value per row, rows filled up to 128",
    ),
    Substitution(
        (EFFICIENT,),
        "CUTLASS",
        MEASURED,
        GRID,
        saves=ROWS,
        workspace="the result in fp32 where heads are wider than 256",
    ),
    Substitution(
        (EFFICIENT + "_backward",),
        "CUTLASS",
        MEASURED,
        GRID,
        workspace="the gradient of q in fp32 by blocks of 64 or 128 rows, one value per row",
    ),
)
