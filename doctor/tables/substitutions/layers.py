"""Layers with weights: convolutions, recurrent layers, products, norms, embeddings."""

from __future__ import annotations

from fsdp_doctor.tables.substitutions.entry import ASSUMED, MEASURED, Substitution

ENTRIES = (
    Substitution(
        ("aten::convolution",),
        "cuDNN's fastest with the channels last",
        ASSUMED,
        "a formula by shape: of 137 calls 85 met within 0.1 %",
        workspace="copies of the operands with the channels last, filled up",
        by_call=True,
        cudnn="9.19",
    ),
    Substitution(
        ("aten::convolution_backward",),
        "cuDNN's fastest with the channels last",
        ASSUMED,
        "a formula by shape: of 137 calls 85 met within 0.1 %",
        workspace="copies of the operands, and the weight's gradient in parts",
        by_call=True,
        cudnn="9.19",
    ),
    Substitution(
        ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"),
        "cuDNN's, over all steps and layers",
        MEASURED,
        "117 calls in fp32 and bf16 met to the byte; one wide layer of a plain RNN by analogy",
        saves="a reserve: the gates of every step and layer",
        workspace="weights in one piece, 8 MiB per layer, buffers of a step or of a layer, twice in backward",
        by_call=True,
        cudnn="9.19",
    ),
    Substitution(
        ("aten::addmm",),
        "cublasLt where the bias is a vector",
        MEASURED,
        "14 calls and whole steps met to the byte",
        workspace="1 MiB per thread, kept",
        single=False,
    ),
    Substitution(
        ("aten::_grouped_mm",),
        "CUTLASS by groups",
        MEASURED,
        "2 calls within 0.2 %",
        workspace="66 KiB in bfloat16",
    ),
    Substitution(
        ("aten::rms_norm",),
        "one fused kernel where input and weight have one dtype, else the composite",
        MEASURED,
        "9 calls met to the byte",
        saves="one fp32 value per row in place of fp32 copies",
        single=False,
    ),
    Substitution(
        ("aten::native_layer_norm",),
        "one fused kernel",
        MEASURED,
        "9 calls met to the byte",
        saves="mean and deviation of each row in fp32, which the CPU keeps in the input's dtype",
        single=False,
    ),
    Substitution(
        ("aten::native_group_norm", "aten::native_group_norm_backward"),
        "two kernels",
        MEASURED,
        "6 calls within 0.1 %",
        saves="mean and deviation of each group",
        workspace="two to five fp32 values per channel and sample",
    ),
    Substitution(
        ("aten::native_batch_norm_backward",),
        "cuDNN or torch's own",
        MEASURED,
        "a bf16 weight beside fp32 statistics is refused, as on a GPU; 10 calls within 3 %",
        single=False,
        cudnn="9.19",
    ),
    Substitution(
        ("aten::embedding_dense_backward",),
        "sorts the indices where there are more than 3,072",
        MEASURED,
        "of 21 calls 19 met within 0.1 %",
        workspace="indices three times, counts, partial sums in fp32",
        by_call=True,
    ),
)
