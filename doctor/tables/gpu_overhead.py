"""What a training process takes of a GPU besides its tensors, by architecture."""

from __future__ import annotations

from dataclasses import dataclass

CHECKED_ON = "2026-12-02"
SOURCES = (
    "torch 2.11 + CUDA 13.0 on an H200, one process alone (measured)",
    "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp: workspace sizes by architecture",
    "NVIDIA/nccl#864: memory per communicator",
)
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes for one process."""

    context: int
    """CUDA context with the modules that training loads."""
    cublas: int
    """Workspace of one cuBLAS handle; forward and backward threads have one each."""
    nccl_first: int
    """The first communicator with its buffers."""
    nccl_more: int
    """Each further one."""
    measured: bool


HOPPER = Taken(767 * MIB, 32 * MIB, 556 * MIB, 260 * MIB, measured=True)
"""Measured on an H200: context with the kernels of all libraries, and the first communicator."""
OTHERS = Taken(450 * MIB, 8 * MIB + MIB // 8, 400 * MIB, 260 * MIB, measured=False)
HANDLES = 2
"""Threads with a cuBLAS handle of their own."""


def taken(sm: int) -> Taken:
    """The row for a compute capability such as 90."""
    return HOPPER if sm // 10 >= 9 else OTHERS
