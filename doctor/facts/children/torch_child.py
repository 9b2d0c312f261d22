"""Describes a Python environment and imports its torch: `EXE -B torch_child.py`, by any Python from 3.8 on.

Imports the standard library and torch only. Prints one JSON object per line, each a part of stack.json; a
line `{"doing": STEP}` goes before everything that may crash or hang, so that the lines before it hold in any
case and the step is known. EXE is not isolated (-I): PYTHONPATH and the user's own packages are what the
training would see. The folder of this script is taken off sys.path, and the working folder is never on it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import platform
import re
import signal
import sys
import sysconfig
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libnccl.so.2",
    "libnccl-net.so",
    "libnccl-net-ofi.so",
)
"""Names that CUDA and NCCL open."""
OPEN_SECONDS = 2
"""Until a library whose loading hangs is given up."""
REQUIREMENTS_OF = ("torch", "cuda-toolkit")
MAPPED = re.compile(
    r"lib(torch|c10|shm|nccl|cu|nv|caffe2|gloo|ucp|ucs|ucc|mlx|efa|fabric|ibverbs|rdmacm|mpi|gomp|iomp|stdc\+\+)"
    r"[^/]*\.so|libc\.so\.6\Z|libc-[\d.]+\.so\Z"
)
"""Base names of mapped files that are reported."""


class Output:
    """The original standard output; what anything else prints goes to standard error."""

    def __init__(self) -> None:
        self.fd = os.dup(1)
        os.dup2(2, 1)

    def line(self, **part: object) -> None:
        """Write one object, at once and whole."""
        data = (json.dumps(part, default=str, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        while data:
            data = data[os.write(self.fd, data) :]


def attempt(call: Callable[[], T]) -> T | None:
    """The result of a call, None if it raises: what one torch lacks is no reason to lose the rest."""
    try:
        return call()
    except Exception:
        return None


def distributions() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Versions by normalised name, and the requirements of a few."""
    from importlib import metadata

    dists: dict[str, str] = {}
    requires: dict[str, list[str]] = {}
    for dist in metadata.distributions():
        try:
            name = re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower()
            version = str(dist.version)
        except Exception:  # the rest of a package that was removed by hand
            continue
        if name not in dists:  # the first on sys.path is the one that is imported
            dists[name] = version
            if name in REQUIREMENTS_OF:
                requires[name] = [str(r) for r in attempt(lambda d=dist: d.requires) or ()]  # type: ignore[misc]
    return dists, requires


def interpreter() -> dict[str, object]:
    """What the interpreter is."""
    libc = platform.libc_ver()
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": sysconfig.get_platform(),
        "libc": list(libc) if libc[0] else None,
    }


def mapped() -> list[str]:
    """Files that this process has mapped, in the order of their addresses."""
    paths: dict[str, None] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            path = line.rstrip("\n").split(None, 5)[5:]
            if path and path[0].startswith("/"):
                paths[path[0].replace(" (deleted)", "")] = None
    return list(paths)


def found_by_loader(name: str) -> tuple[str | None, str | None]:
    """The file that the loader takes for a name, or why it takes none.

    Loading a library runs code of it, so that it happens in a process of its own.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer: list[str | None] = [None, None]
        try:
            faulthandler.disable()
            signal.alarm(OPEN_SECONDS)
            before = mapped()
            ctypes.CDLL(name)
            start = name.split(".so")[0] + ".so"
            new = [p for p in mapped() if p not in before] + before
            answer[0] = next((p for p in new if os.path.basename(p).startswith(start)), None)
        except OSError as error:
            if not str(error).startswith(f"{name}: cannot open shared object file"):
                answer[1] = str(error)
        finally:
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not data:
        return None, f"loading it ended by signal {status & 127}"
    path, refused = json.loads(data.decode())
    return path, refused


def loader() -> dict[str, dict[str, str | None]]:
    """Paths by name, and the reason where a file is there and cannot be loaded."""
    plugin = os.environ.get("NCCL_NET_PLUGIN", "").split(",")[0]
    named = [n for n in (plugin, f"libnccl-net-{plugin}.so") if plugin and n.endswith(".so")]
    answers = {n: found_by_loader(n) for n in dict.fromkeys((*LIBRARIES, *named))}
    return {
        "dlopen": {n: path for n, (path, _) in answers.items()},
        "dlopen_errors": {n: error for n, (_, error) in answers.items() if error},
    }


def import_torch(installed: bool) -> object:
    """The module, None if there is none. Raises ImportError with the reason where it cannot be used."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch" and not installed:
            return None
        raise
    if not hasattr(torch, "__version__"):
        where = getattr(torch, "__file__", None) or next(iter(getattr(torch, "__path__", ["?"])))
        raise ImportError(f"{where} is found as torch and is not PyTorch")
    return torch


def about() -> dict[str, object]:
    """What torch says of itself without touching a GPU."""
    import torch

    def nccl() -> str:
        return ".".join(str(n) for n in torch.cuda.nccl.version() if isinstance(n, int))

    def architectures() -> list[str]:
        # Older releases leave torch.cuda.get_arch_list() empty where no GPU can be used.
        return (torch._C._cuda_getArchFlags() or "").split()

    return {
        "version": str(torch.__version__),
        "cuda": attempt(lambda: torch.version.cuda),
        "hip": attempt(lambda: torch.version.hip),
        "nccl": attempt(nccl),
        "arch_list": attempt(architectures) or [],
        "path": attempt(lambda: os.path.dirname(torch.__file__)),
        "distributed_available": attempt(lambda: bool(torch.distributed.is_available())),
        "nccl_available": attempt(lambda: bool(torch.distributed.is_nccl_available())),
    }


def cuda() -> dict[str, object]:
    """Whether CUDA starts, and why not. Makes no context, so that the GPUs keep their memory.

    The check through NVML is switched off: it passes where CUDA itself fails.
    """
    import torch

    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = attempt(torch.cuda.is_available)
        count = attempt(torch.cuda.device_count)
    reasons = [str(w.message) for w in caught if "CUDA" in str(w.message)]
    if not available and not reasons and attempt(lambda: torch.version.cuda) and has_nvidia_device():
        try:
            torch.cuda.init()
        except Exception as error:
            reasons.append(str(error))
    reason = re.sub(r"\(Triggered internally at [^)]*\)", "", reasons[0]) if reasons else ""
    reason = re.sub(r"\A\s*CUDA initialization:\s*", "", reason)
    return {
        "cuda_available": available,
        "device_count": count,
        "cuda_error": None if available else " ".join(reason.split()) or None,
    }


def has_nvidia_device() -> bool:
    """Whether the kernel driver shows a GPU to this process."""
    return any(re.match(r"nvidia\d", n) for n in attempt(lambda: os.listdir("/dev")) or ())


def nccl_runtime(libraries: list[str]) -> str | None:
    """The version of the NCCL that is loaded, by itself or inside of torch; None where there is none."""
    own = [p for p in libraries if os.path.basename(p).startswith("libnccl.so")]
    for path in own + [p for p in libraries if os.path.basename(p) == "libtorch_cuda.so"]:
        version = ctypes.c_int()
        try:
            if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version)) == 0:
                return version_text(version.value)
        except (OSError, AttributeError):
            continue
    return None


def version_text(number: int) -> str:
    """2.29.7 of 22907; releases before 2.9 wrote 2.8.4 as 2804."""
    major = 1000 if number < 10000 else 10000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def main() -> None:
    """Print all parts."""
    out = Output()
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    out.line(**interpreter())
    out.line(doing="list the distributions")
    dists, requires = distributions()
    out.line(dists=dists, requires=requires)
    linux = sys.platform.startswith("linux")
    if linux:
        out.line(doing="ask the loader for libraries")
        out.line(**(attempt(loader) or {}))
    out.line(doing="import torch")
    try:
        torch = import_torch("torch" in dists)
    except BaseException as error:  # what an import runs can raise anything, SystemExit included
        message = " ".join(str(error).split())[:600]
        out.line(torch={"error": ": ".join(x for x in (type(error).__name__, message) if x)})
        return
    if torch is None:
        out.line(torch=None)
        return
    out.line(torch=about())
    out.line(doing="start CUDA")
    out.line(torch=cuda())
    if linux:
        libraries = [p for p in mapped() if MAPPED.match(os.path.basename(p))]
        out.line(libraries=libraries)
        out.line(doing="ask NCCL for its version")
        out.line(nccl_runtime=nccl_runtime(libraries))


if __name__ == "__main__":
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        import resource

        # A step that hangs is ended by this signal, and so tells where it hung.
        faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
    # What libraries do at exit is not asked here, and it can hang or crash.
    os._exit(0)
