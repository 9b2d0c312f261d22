"""Operators over elements and rows: losses, reductions, dropout, softmax, indices."""

from __future__ import annotations

from fsdp_doctor.tables.substitutions.entry import ASSUMED, MEASURED, Substitution

LOSSES = "each in bf16 and fp32 met to the byte"
SEVERAL = "several blocks per output where there are few outputs"
PARTIAL = "partial results as Reduce.cuh sizes them by the GPU's multiprocessors; a wider copy"

ENTRIES = (
    Substitution(
        ("aten::dropout",),
        "a fused kernel",
        MEASURED,
        "dropout, dropout2d in bf16 and fp32 met to the byte",
        saves="a mask of one byte per element",
        single=False,
    ),
    Substitution(
        ("aten::dropout_",),
        "a mask of its own and three kernels: nothing is fused in place",
        ASSUMED,
        "Dropout.cpp",
        saves="a mask of the input's dtype",
        single=False,
    ),
    Substitution(
        ("aten::softmax", "aten::log_softmax"),
        "fp16 to fp32 in one kernel, other conversions by a copy",
        MEASURED,
        "in bf16 and fp32, with and without a conversion, met to the byte",
        saves="the result",
        single=False,
    ),
    Substitution(
        ("aten::_softmax_backward_data",),
        "torch's own",
        MEASURED,
        "in bf16 and fp32 met to the byte",
        workspace="the gradient times the result",
    ),
    Substitution(
        ("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"),
        "elements first, then the reduction",
        MEASURED,
        LOSSES,
        workspace="the elements' losses: of mse and smooth_l1 the scalar keeps their storage",
    ),
    Substitution(
        ("aten::binary_cross_entropy_with_logits",),
        "elements first, then the reduction",
        MEASURED,
        LOSSES,
        workspace="the elements' losses twice; zeros in backward are worked on in place",
    ),
    Substitution(
        ("aten::logsumexp",),
        "several kernels",
        MEASURED,
        "2 calls within 0.1 %",
        workspace="the input's size, and rows twice",
    ),
    Substitution(
        (
            "aten::sum",
            "aten::mean",
            "aten::linalg_vector_norm",
            "aten::norm",
            "aten::any",
            "aten::all",
            "aten::max",
        ),
        SEVERAL,
        MEASURED,
        "18 calls met to the byte, 2 of max over all elements within 10 %",
        workspace=PARTIAL,
    ),
    Substitution(
        ("aten::prod", "aten::amax", "aten::amin", "aten::min"),
        SEVERAL,
        ASSUMED,
        "the same Reduce.cuh as sum and max",
        workspace=PARTIAL,
    ),
    Substitution(
        ("aten::topk",),
        "a sort by digits, several blocks to a row where rows are long or very many",
        MEASURED,
        "2 calls within 0.2 %",
        workspace="counts of digits",
    ),
    Substitution(
        ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"),
        "sorts the indices where it accumulates",
        MEASURED,
        "2 calls of index_put and the backward of 4 of index within 0.2 %",
        workspace="indices five times; those of a mask are made first",
    ),
    Substitution(
        ("aten::index", "aten::nonzero", "aten::masked_select"),
        "counts, then writes as many as the mask's values say or a balanced choice gives",
        ASSUMED,
        "values of the batch are computed; others are assumed and listed",
        workspace="indices of the mask",
        single=False,
    ),
    Substitution(
        ("aten::_ctc_loss", "aten::_ctc_loss_backward"),
        "torch's own; cuDNN's, which takes int32 targets alone, is not modelled",
        MEASURED,
        "15 calls met within 0.1 %",
        saves="a table of twice the longest target by time and batch",
        workspace="a second table in backward; of large problems its blanks twice, and a first gradient",
        single=False,
    ),
    Substitution(
        ("gradient sums",),
        "the autograd engine adds gradients, and fills those it has just made, in place",
        MEASURED,
        "whole configurations met to the byte",
        single=False,
    ),
    Substitution(
        ("autocast",),
        "CUDA's lists of operators; weights are cast once per region",
        MEASURED,
        "17 of 19 calls and 20 whole configurations",
        saves="the casts that an operator saves",
        workspace="casts of weights until the region ends",
        single=False,
    ),
    Substitution(
        ("flatten_parameters",),
        "weights of recurrent layers in one buffer, in fp32, fp16 and fp64",
        MEASURED,
        "whole configurations under FSDP2, FSDP1 and DDP met to the byte",
        saves="the buffer",
        single=False,
        cudnn="9.19",
    ),
    Substitution(
        ("ddp",),
        "gradient buckets by the reducer's own assignment",
        MEASURED,
        "whole configurations on 1, 2 and 4 GPUs",
        saves="the buckets",
        single=False,
    ),
)
