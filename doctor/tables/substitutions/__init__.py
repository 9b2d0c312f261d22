"""How operators use memory on CUDA where that differs from what their shapes say, and how it is known.

The rules themselves run beside torch (`memory/child/choices.py`, `kernels.py`, `casting.py`, …); this table
says of each which kernel CUDA chooses, what that saves and takes, and whether it was measured, so that an
answer can name the operators that it rests on by assumption only. A test compares the two.
"""

from __future__ import annotations

from fsdp_doctor.tables.substitutions import attention, elements, layers
from fsdp_doctor.tables.substitutions.entry import ASSUMED, MEASURED, Substitution

__all__ = [
    "ASSUMED",
    "MARGIN",
    "MEASURED",
    "OWN_SPACES",
    "SUBSTITUTIONS",
    "UNMEASURED",
    "VERSION",
    "Substitution",
    "entry",
    "known",
]

CHECKED_ON = "2026-12-02"
VERSION = 2
"""Of the table: it grows when an entry changes what a forecast says."""
SOURCES = (
    "H200, torch 2.11 + CUDA 13.0, cuDNN 9.19: 131 whole configurations, 1,182 single operators (measured)",
    "pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: order of attention backends",
    "pytorch aten/src/ATen/autocast_mode.h: operators that autocast treats",
    "pytorch aten/src/ATen/native/cuda: Reduce.cuh, Embedding.cu, LossCTC.cu, group_norm_kernel.cu, …",
)
MARGIN = 0.02
"""Part of the peak that is added before it is compared with a GPU: kernel workspaces that no rule has."""

SUBSTITUTIONS: tuple[Substitution, ...] = (*attention.ENTRIES, *layers.ENTRIES, *elements.ENTRIES)

UNMEASURED = frozenset(
    (
        "aten::_linalg_eigh",
        "aten::linalg_matrix_exp",
        "aten::linalg_qr",
    )
)
"""Operators of torch whose CUDA kernels need memory that no rule here has."""
OWN_SPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler")


def known(operator: str) -> bool:
    """Whether an operator, such as `aten::mm`, needs only what its results take or what a rule says."""
    return operator.partition("::")[0] in OWN_SPACES and operator not in UNMEASURED


def entry(operator: str, sm: int) -> Substitution | None:
    """The entry for an operator on an architecture, or that of another one; None where there is no rule."""
    found = [s for s in SUBSTITUTIONS if operator in s.operators]
    return next((s for s in found if sm in s.sm), found[0] if found else None)
