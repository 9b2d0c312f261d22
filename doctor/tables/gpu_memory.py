"""Memory of GPUs as torch reports it (`total_memory`), and their compute capability."""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECKED_ON = "2026-12-02"
SOURCES = (
    "torch.cuda.get_device_properties on H200 (measured)",
    "nvidia-smi's MiB of the other products, less what the driver keeps",
    "NVIDIA's data sheets and white papers: streaming multiprocessors by product (H200: measured)",
)
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU by the name that NVML gives it, and the words by which users call it."""

    name: str
    pattern: str
    gib: float
    sm: int
    processors: int = 132
    """Streaming multiprocessors: kernels that spread over all of them need buffers for as many."""
    measured: bool = False


PRODUCTS: tuple[Product, ...] = (
    Product("B300", r"\bG?B300\b", 267.7, 103, 160),
    Product("GB200", r"\bGB200\b", 184.0, 100, 148),
    Product("B200", r"\bB200\b", 178.3, 100, 148),
    Product("GH200 96GB", r"\bGH200\b(?!.*144)", 94.5, 90, 132),
    Product("GH200 144GB", r"\bGH200\b", 139.8, 90, 132),
    Product("H200", r"\bH200\b", 139.8, 90, 132, measured=True),
    Product("H100 NVL 94GB", r"\bH100\b.*(NVL|94)", 93.1, 90, 132),
    Product("H100 64GB", r"\bH100\b.*64", 63.4, 90, 132),
    Product("H100 PCIe 80GB", r"\bH100\b.*\bPCI", 79.1, 90, 114),
    Product("H100 80GB", r"\bH[18]00\b", 79.1, 90, 132),
    Product("H20", r"\bH20\b", 95.0, 90, 78),
    Product("A100 40GB", r"\bA[18]00\b.*40", 39.4, 80, 108),
    Product("A100 80GB", r"\bA[18]00\b", 79.1, 80, 108),
    Product("A30", r"\bA30\b", 23.5, 80, 56),
    Product("RTX PRO 6000 Blackwell", r"\b(RTX )?PRO 6000\b", 94.9, 120, 188),
    Product("RTX 5090", r"\b5090\b", 31.3, 120, 170),
    Product("L40S", r"\bL40S\b", 44.4, 89, 142),
    Product("L40", r"\bL40\b", 44.4, 89, 142),
    Product("L4", r"\bL4\b", 22.0, 89, 58),
    Product("RTX 6000 Ada", r"\b6000\b.*\bAda\b", 47.4, 89, 142),
    Product("RTX 4090", r"\b4090\b", 23.5, 89, 128),
    Product("RTX A6000", r"\bA6000\b", 47.4, 86, 84),
    Product("A40", r"\bA40\b", 44.4, 86, 84),
    Product("A10G", r"\bA10G\b", 22.0, 86, 80),
    Product("A10", r"\bA10\b", 22.0, 86, 72),
    Product("RTX 3090", r"\b3090\b", 23.6, 86, 82),
    Product("V100 16GB", r"\bV100\b.*16", 15.8, 70, 80),
    Product("V100 32GB", r"\bV100\b", 31.7, 70, 80),
    Product("T4", r"\bT4\b", 14.6, 75, 40),
)
"""First match wins."""
FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:GiB|G|GB)?\s*\Z", re.IGNORECASE)
JOINED = re.compile(r"(RTX|NVIDIA|TESLA)(?=[A-Z0-9])", re.IGNORECASE)
"""Words that are written without a space behind them."""
DEFAULT_SM, DEFAULT_PROCESSORS = 90, 132
"""Of a GPU that is named by its memory alone."""
PROCESSORS = {70: 80, 75: 40, 80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 103: 160, 120: 188}
"""Streaming multiprocessors of the largest product of an architecture, where no product is named."""


def product(words: str) -> Product | None:
    """The product that is meant by a name or by a number of GiB; None for an unknown one."""
    number = FORM.match(words)
    if number is not None:
        gib = float(number[1])
        return Product("the GPU", "", gib, DEFAULT_SM, DEFAULT_PROCESSORS) if gib > 0 else None
    spaced = JOINED.sub(r"\1 ", words.replace("_", " "))
    return next((p for p in PRODUCTS if re.search(p.pattern, spaced, re.IGNORECASE)), None)


def names() -> tuple[str, ...]:
    """What can be said."""
    return tuple(p.name for p in PRODUCTS)
