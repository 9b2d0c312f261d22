"""Bytes in use on each GPU and by each process, as the driver's library says; the standard library alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
MOST = 64
"""GPUs that are looked at."""
PROCESSES = 256
"""Processes of one GPU that are looked at."""
UNKNOWN = (1 << 64) - 1
"""NVML_VALUE_NOT_AVAILABLE: the driver does not tell what a process uses."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the second and third versions of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def used() -> dict[str, int]:
    """Bytes in use by UUID; empty where NVML does not answer."""
    found: dict[str, int] = {}
    with suppress(OSError, AttributeError):
        for nvml, device, uuid in _devices():
            memory = _Memory()
            if not nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
                found[uuid] = int(memory.used)
    return found


def processes() -> dict[str, dict[int, int]]:
    """Bytes of each process by its number, by UUID. Numbers are those of the host, also in a container."""
    found: dict[str, dict[int, int]] = {}
    with suppress(OSError, AttributeError):
        for nvml, device, uuid in _devices():
            count, table = ctypes.c_uint(PROCESSES), (_Process * PROCESSES)()
            if not nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), table):
                found[uuid] = {
                    int(p.pid): int(p.used) for p in table[: count.value] if int(p.used) != UNKNOWN
                }
    return found


def _devices() -> Iterator[tuple[Any, ctypes.c_void_p, str]]:
    """NVML, each GPU's handle and its UUID. Raises OSError and AttributeError where there is no NVML."""
    nvml = ctypes.CDLL(LIBRARY)
    if nvml.nvmlInit_v2():
        return
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for i in range(min(count.value, MOST)):
            device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if not nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)) and not nvml.nvmlDeviceGetUUID(
                device, name, len(name)
            ):
                yield nvml, device, name.value.decode("ascii", "replace")
    finally:
        nvml.nvmlShutdown()


def of(by_uuid: Mapping[str, int], uuid: str) -> int | None:
    """The figure of the GPU that torch names by `uuid`, which has NVML's prefix or none."""
    for name, size in by_uuid.items():
        if same(name, uuid):
            return size
    return None


def same(name: str, uuid: str) -> bool:
    """Whether NVML's and torch's names of a GPU mean one."""
    return bool(uuid) and name.removeprefix("GPU-") == uuid.removeprefix("GPU-")


def own(
    before: Mapping[str, Mapping[int, int]], now: Mapping[str, Mapping[int, int]], uuid: str, pid: int
) -> int | None:
    """Bytes of this process on a GPU; None where it cannot be told from others.

    In a container its number is another one than the driver's: then it is the one that was not there `before`
    it began, should there be one.
    """
    known = {p for name, found in before.items() if same(name, uuid) for p in found}
    for name, found in now.items():
        if same(name, uuid):
            new = [p for p in found if p not in known]
            if pid in new:
                return found[pid]
            return found[new[0]] if len(new) == 1 else None
    return None
