"""What the messages of a failed `import torch` mean, and what mends each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

CHECKED_ON = "2026-08-31"
PATIENCE = 30.0
"""Seconds that an import of torch may take from a cold or a network file system before it counts as hung."""


class Cause(str, Enum):
    """Kinds of failure; other checks judge some of them better and are then left to it."""

    NCCL_SYMBOL = "nccl symbol"
    CUDA_SYMBOL = "cuda symbol"
    SYMBOL = "symbol"
    DRIVER_LIBRARY = "driver library"
    LIBRARY = "library"
    GLIBC = "glibc"
    LIBSTDCXX = "libstdc++"
    SHADOWED = "shadowed"
    MODULE = "module"
    HANG = "hang"
    CRASH = "crash"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A message, what it means (`{0}` is the first group), and the fix; `reinstall` adds the pip command."""

    cause: Cause
    text: re.Pattern[str]
    meaning: str
    fix: str
    reinstall: bool = True


def _p(cause: Cause, text: str, meaning: str, fix: str, reinstall: bool = True) -> Pattern:
    return Pattern(cause, re.compile(text, re.IGNORECASE), meaning, fix, reinstall)


# Texts of the dynamic loader, of CPython and of torch/__init__.py; pytorch#119072, #186591, #123097,
# returnn#1802 report the symbols.
PATTERNS: tuple[Pattern, ...] = (
    _p(
        Cause.NCCL_SYMBOL,
        r"undefined symbol: (nccl\w{1,60})",
        "the libnccl.so.2 that is loaded is older than the one torch was built with and lacks {0}",
        "Remove other copies of NCCL (LD_LIBRARY_PATH, LD_PRELOAD, a second nvidia-nccl wheel) and "
        "reinstall torch with the NCCL it pins",
    ),
    _p(
        Cause.CUDA_SYMBOL,
        r"undefined symbol: ((?:__)?(?:nvJitLink|cublas|cudnn|cusparse|cuda|cufft|nvshmem)\w{0,80})",
        "a CUDA library of another release is loaded before torch's own and lacks {0}",
        "Take CUDA folders out of LD_LIBRARY_PATH and reinstall torch with its nvidia wheels",
    ),
    _p(
        Cause.SYMBOL,
        r"undefined symbol: (iJIT_NotifyEvent)",
        "MKL 2024.1 or newer lacks {0}, which this torch build expects",
        "Install mkl<2024.1, or torch from pip instead of conda",
        False,
    ),
    _p(
        Cause.SYMBOL,
        r"undefined symbol: (\w{1,120})",
        "two libraries of different builds are mixed: {0} is missing",
        "Reinstall torch and every package with compiled extensions for it",
    ),
    _p(
        Cause.DRIVER_LIBRARY,
        r"(libcuda\.so[.\d]*|libnvidia-ml\.so[.\d]*): cannot open shared object",
        "the driver's library {0} is not found",
        "Install the NVIDIA driver, or start the container with the NVIDIA runtime (--gpus all)",
        False,
    ),
    _p(
        Cause.LIBRARY,
        r"(lib[\w.+-]{1,60}\.so[.\d]*): cannot open shared object",
        "the library {0} is not found",
        "Reinstall torch together with the packages it pins",
    ),
    _p(
        Cause.GLIBC,
        r"version [`'\"]?(GLIBC_[\d.]{1,12})",
        "the wheel needs {0}, which this system's C library does not have",
        "Use a newer base image or operating system, or an older torch",
        False,
    ),
    _p(
        Cause.LIBSTDCXX,
        r"version [`'\"]?((?:GLIBCXX|CXXABI)_[\d.]{1,12})",
        "the libstdc++ that is loaded lacks {0}",
        "Take the folder of the older libstdc++ out of LD_LIBRARY_PATH, or install a newer one "
        "(conda: libstdcxx-ng)",
        False,
    ),
    _p(
        Cause.SYMBOL,
        r"(lib[\w.+-]{1,60}\.so[.\d]*): cannot allocate memory in static TLS block",
        "{0} is loaded too late for the space that the loader keeps for thread-local data",
        "Load it first with LD_PRELOAD, or import torch before other packages",
        False,
    ),
    _p(
        Cause.SHADOWED,
        r"(No module named ['\"]?torch\._C|partially initialized module ['\"]torch['\"]|circular import)",
        "a file or folder named torch in front of sys.path hides the installed one, or the install is half "
        "done ({0})",
        "Run from another folder, rename the file or folder named torch, or reinstall torch",
    ),
    _p(
        Cause.MODULE,
        r"No module named ['\"]?([\w.]{1,80})",
        "the Python module {0} is missing",
        "Install the missing requirement, or reinstall torch with its requirements",
    ),
    _p(
        Cause.HANG,
        r"(time ?out|timed out|took (?:too long|longer|more than)|no answer|did not (?:end|finish|answer)|"
        r"deadline|hung)",
        "the import did not end in time, as with a hung driver or a Python environment on a slow network "
        "file system",
        "See dmesg for Xid and NVRM lines, and try the import by hand with `python -X importtime`",
        False,
    ),
    _p(
        Cause.CRASH,
        r"(SIG(?:SEGV|ILL|ABRT|BUS|KILL)|segmentation fault|illegal instruction|core dumped|"
        r"signal \d{1,2}|bus error|killed)",
        "the interpreter died while it imported torch ({0})",
        "Reinstall torch; an illegal instruction means a build for a newer processor, a kill too little "
        "memory",
    ),
    _p(
        Cause.OTHER,
        r"(cannot allocate memory|MemoryError|failed to map segment|operation not permitted)",
        "the loader may not map torch's libraries ({0})",
        "Raise `ulimit -v` and the container's memory limit, and see that the file system is not "
        "mounted noexec",
        False,
    ),
)
