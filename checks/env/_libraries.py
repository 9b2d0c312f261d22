"""Where loaded libraries came from: the environment's wheels, or some other folder and why."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.stack import Stack

JUDGED = re.compile(
    r"(libnccl|libcudart|libcublas|libcublasLt|libcudnn|libnvJitLink|libcusparse|libnvshmem_host)"
    # libcudnn_ops is cuDNN too and libcudart-9335f6a2 the runtime, but libnccl-net is a plug-in.
    r"(?:(?<=libcudnn)_\w+|(?<=libcudart)-\w+)?\.so"
)
"""Libraries of which torch brings its own and a second copy does harm."""
PACKAGES = ("/site-packages/", "/dist-packages/")


def brings_libraries(stack: Stack) -> bool:
    """Whether torch takes its CUDA libraries from nvidia wheels, and not from conda, the system or itself."""
    lines = (*stack.requires.get("torch", ()), *stack.requires.get("cuda-toolkit", ()))
    return any(line.startswith(("nvidia-", "cuda-toolkit")) for line in lines)


def name_of(path: str) -> str | None:
    """The judged library that a file is, without its version: libnccl, libcudnn; None for others."""
    found = JUDGED.match(posixpath.basename(path))
    return found.group(1) if found else None


def is_foreign(path: str) -> bool:
    """Whether a file lies outside every folder of Python packages."""
    return not any(folder in path for folder in PACKAGES)


def origin(path: str, env: Environment | None) -> tuple[str, str | None]:
    """(in words, variable) why the loader took a file outside the environment."""
    variables: Mapping[str, str] = env.variables if env is not None else {}
    preload = variables.get("LD_PRELOAD", "").replace(":", " ").split()
    if path in preload or posixpath.basename(path) in [posixpath.basename(p) for p in preload]:
        return "through LD_PRELOAD", "LD_PRELOAD"
    folder = posixpath.dirname(path)
    listed = [posixpath.normpath(f) for f in variables.get("LD_LIBRARY_PATH", "").split(":") if f]
    if posixpath.normpath(folder or "/") in listed:
        return "through LD_LIBRARY_PATH", "LD_LIBRARY_PATH"
    prefix = variables.get("CONDA_PREFIX", "").rstrip("/")
    if prefix and path.startswith(f"{prefix}/"):
        return "from the conda environment", "CONDA_PREFIX"
    return "from the system", None
