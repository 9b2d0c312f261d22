"""Bytes in use on each GPU, as the driver's library says; the standard library alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

LIBRARY = "libnvidia-ml.so.1"
MOST = 64
"""GPUs that are looked at."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def used() -> dict[str, int]:
    """Bytes in use by UUID; empty where NVML does not answer."""
    found: dict[str, int] = {}
    try:
        nvml = ctypes.CDLL(LIBRARY)
        if nvml.nvmlInit_v2():
            return found
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for i in range(min(count.value, MOST)):
            device, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _Memory()
            if (
                not nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device))
                and not nvml.nvmlDeviceGetUUID(device, name, len(name))
                and not nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            ):
                found[name.value.decode("ascii", "replace")] = int(memory.used)
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        pass
    return found


def of(by_uuid: Mapping[str, int], uuid: str) -> int | None:
    """The figure of the GPU that torch names by `uuid`, which has NVML's prefix or none."""
    for name, size in by_uuid.items():
        if uuid and name.removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return size
    return None
