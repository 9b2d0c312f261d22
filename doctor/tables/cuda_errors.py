"""CUDA runtime errors that a start can meet, by number, and which words of torch's message stand for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

CHECKED_ON = "2026-08-31"

# cudaError_t of the CUDA runtime API; the texts are those of torch's cuda/__init__.py and c10/cuda.
DRIVER_TOO_OLD = 35
NO_DEVICE = 100
COMPAT_UNSUPPORTED = 804
DRIVER_MISMATCH = 803
NOT_INITIALIZED = 802

_NUMBER = re.compile(r"\b[Ee]rror:? ?([0-9]{1,4})\b")
_WORDS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"driver on your system is too old|driver version is insufficient", re.I), DRIVER_TOO_OLD),
    (re.compile(r"system not yet initialized", re.I), NOT_INITIALIZED),
    (re.compile(r"forward compatibility was attempted", re.I), COMPAT_UNSUPPORTED),
    (re.compile(r"unsupported display driver ?/ ?cuda driver combination", re.I), DRIVER_MISMATCH),
    (re.compile(r"no (?:cuda-capable device is detected|CUDA GPUs are available)", re.I), NO_DEVICE),
    (re.compile(r"found no NVIDIA driver", re.I), 36),
    (re.compile(r"invalid device ordinal", re.I), 101),
    (re.compile(r"busy or unavailable", re.I), 46),
    (re.compile(r"unknown error", re.I), 999),
    (re.compile(r"initialization error", re.I), 3),
    (re.compile(r"OS call failed", re.I), 304),
    (re.compile(r"out of memory", re.I), 2),
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error says about the machine, and what to do."""

    text: str
    fix: str


MEANINGS: Mapping[int, Meaning] = {
    2: Meaning(
        "a context does not fit into the memory that other processes leave",
        "End the processes that hold GPU memory",
    ),
    3: Meaning(
        "the driver did not initialise",
        "Load the nvidia-uvm module (modprobe nvidia-uvm) and see that /dev/nvidia-uvm exists",
    ),
    36: Meaning(
        "libcuda.so.1 found no driver",
        "Start the container with the NVIDIA runtime (--gpus all), or load the nvidia module",
    ),
    46: Meaning(
        "every GPU is busy in an exclusive mode or prohibited",
        "End the process that holds the GPU, or set the compute mode back (nvidia-smi -c 0)",
    ),
    NO_DEVICE: Meaning(
        "the driver shows CUDA no GPU although NVML lists some",
        "See CUDA_VISIBLE_DEVICES, the /dev/nvidia* nodes of the container, and MIG mode",
    ),
    101: Meaning(
        "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
        "Correct or unset CUDA_VISIBLE_DEVICES",
    ),
    304: Meaning(
        "a call into the kernel driver failed",
        "See dmesg for NVRM lines and the permissions of /dev/nvidia*",
    ),
    NOT_INITIALIZED: Meaning(
        "the NVSwitch fabric is not initialised: the fabric manager does not run or has not finished",
        "Start nvidia-fabricmanager in the driver's own version and wait until it has finished",
    ),
    DRIVER_MISMATCH: Meaning(
        "libcuda and the loaded kernel module do not belong together",
        "Reboot, or reload the NVIDIA kernel modules after a driver update",
    ),
    COMPAT_UNSUPPORTED: Meaning(
        "a cuda-compat libcuda is loaded on a GPU that it does not support",
        "Take the compat folder out of LD_LIBRARY_PATH",
    ),
    999: Meaning(
        "the driver is in a bad state, as after a suspend, a lost GPU or a failed nvidia-uvm",
        "See dmesg for Xid and NVRM lines; reload nvidia-uvm or reboot",
    ),
}


def number_of(message: str | None) -> int | None:
    """The error number that a message of torch names or describes; None where it does neither."""
    if not message:
        return None
    found = _NUMBER.search(message)
    if found:
        return int(found.group(1))
    return next((number for pattern, number in _WORDS if pattern.search(message)), None)
