"""The Python environment that would train: distributions, torch's own answers, libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stack:
    """What the interpreter holds, read without importing torch."""

    python: str
    """Version, such as 3.12.3."""
    executable: str
    platform: str | None = None
    libc: tuple[str, str] | None = None
    """Such as ("glibc", "2.39")."""
    dists: Mapping[str, str] = field(default_factory=dict)
    """Distribution (normalised name) -> version."""
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Distribution -> its Requires-Dist lines, for torch and cuda-toolkit."""
    dlopen: Mapping[str, str | None] = field(default_factory=dict)
    """Library name -> the file the loader finds, None where it finds none."""
    torch_error: str | None = None
    """Why `import torch` gave no answers: the exception, or that it took too long."""
    system_nccl: tuple[str, ...] = ()
    """libnccl.so.2 files outside the environment that the loader could take."""
    dlopen_errors: Mapping[str, str] = field(default_factory=dict)
    """Library name -> why the loader refused a file that is there, such as a missing dependency of it."""


@dataclass(frozen=True, slots=True)
class Torch:
    """torch's own answers, from a child that imported it. Unknown where the import failed."""

    version: str
    """With its local tag, such as 2.13.0+cu130."""
    cuda: str | None = None
    """torch.version.cuda."""
    hip: str | None = None
    nccl: str | None = None
    """torch.cuda.nccl.version(): the NCCL it was compiled against, not the one loaded."""
    nccl_runtime: str | None = None
    """ncclGetVersion of the libnccl.so.2 mapped after the import."""
    arch_list: tuple[str, ...] = ()
    cuda_available: bool | None = None
    device_count: int | None = None
    cuda_error: str | None = None
    path: str | None = None
    distributed_available: bool | None = None
    nccl_available: bool | None = None
    libraries: tuple[str, ...] = ()
    """Files mapped after `import torch`."""
