"""What the parts of a training step cost, for estimates of how much slower a change makes it."""

from __future__ import annotations

CHECKED_ON = "2026-12-02"
SOURCES = (
    "published nccl-tests and FSDP runs (tables fabric_figures, compute_rates)",
    "PCIe 4 and 5 x16: 25 and 50 GB/s of pinned copies on healthy machines",
    "torch's AdamW on the host: bound by memory, which all ranks of a node share",
)
NETWORK_GBPS = 40.0
"""GB/s per rank between nodes: one 400 Gbit/s adapter per GPU at what a ring reaches of it."""
PCIE_RING_GBPS = 18.0
"""GB/s per rank inside a node without NVLink."""
PCIE_COPY_GBPS = 25.0
"""GB/s of pinned copies between host and GPU, with all GPUs of a node at it."""
HOST_OPTIMIZER_GBPS = 20.0
"""GB/s of host memory that one rank's optimizer gets, with all ranks of a node at it."""
OPTIMIZER_BYTES = 28.0
"""Bytes that AdamW reads and writes per float32 element: parameter, gradient, two moments."""
FP32_RATE = 1 / 15
"""Part of the tensor cores' rate for float32 products while TF32 is off, which is torch's default."""
DEFAULT_TFLOPS, DEFAULT_EFFICIENCY = 312.0, 0.45
"""For a GPU that is named by its memory alone."""
