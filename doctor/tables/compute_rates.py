"""What GPUs compute: dense bfloat16 (float16 before Ampere) by product, and what training reaches of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECKED_ON = "2026-12"
SOURCE = (
    "NVIDIA's data sheets: tensor cores, float32 accumulation, without sparsity. Efficiencies: "
    "published FSDP runs (torchtitan on A100, H100 and B200, fms-fsdp on A100), fitted to the step model"
)


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """`tflops` is the peak; `efficiency` the part of it that a large model's matrix products reach alone."""

    pattern: str
    tflops: float
    efficiency: float = 0.45
    fitted: bool = False
    """Whether `efficiency` comes from published runs on this product, and is no default."""


COMPUTE_RATES: tuple[ComputeRate, ...] = (
    ComputeRate(r"GB[23]00", 2500),
    ComputeRate(r"B[23]00", 2250, 0.45, fitted=True),
    ComputeRate(r"H[12]00 NVL", 835),
    ComputeRate(r"H(100|800) PCIe", 756),
    ComputeRate(r"H20\b", 148, 0.60),
    ComputeRate(r"GH200|H[128]00\b", 989, 0.50, fitted=True),
    ComputeRate(r"A[18]00", 312, 0.60, fitted=True),
    ComputeRate(r"A30\b", 165),
    ComputeRate(r"A40\b", 150),
    ComputeRate(r"A10\b", 125),
    ComputeRate(r"A10G\b", 70),
    ComputeRate(r"L40S\b", 362),
    ComputeRate(r"L40\b", 181),
    ComputeRate(r"L20\b", 119.5),
    ComputeRate(r"L4\b", 121),
    ComputeRate(r"V100", 125),
    ComputeRate(r"T4\b", 65),
    ComputeRate(r"(RTX|GeForce).* 5090", 209),
    ComputeRate(r"(RTX|GeForce).* 4090", 165),
    ComputeRate(r"(RTX|GeForce).* 3090", 71),
    ComputeRate(r"RTX 6000 Ada", 364),
    ComputeRate(r"RTX A6000", 155),
)
"""First match wins."""

PRODUCT_SHARE = 0.57
"""Part of the rate of large matrix products alone (the probe's fixed work) that a model's layers reach: on an
H200 the probe's products gave 862 TFLOP/s, and published runs fit 0.50 of 989 on this processor.
"""

HOP_SECONDS = 5e-6
"""What each further rank adds to a ring's latency. Rough: between 2 and 10 us in reports."""
STATE_BYTES = 16.0
"""Per parameter of the whole model: float32 parameter, gradient and Adam's two moments."""
STATE_SHARE = 0.80
"""Part of a GPU's memory that parameters, gradients and optimizer may take beside activations."""
EXPOSED_WARN = 0.15
"""Part of the step in which nothing is computed, from which a job counts as bound by communication."""


def compute_rate(name: str | None) -> ComputeRate | None:
    """The row of a name such as "NVIDIA H100 80GB HBM3" or "H100"; None for one that is not listed."""
    if not name:
        return None
    return next((r for r in COMPUTE_RATES if re.search(r.pattern, name, re.IGNORECASE)), None)
