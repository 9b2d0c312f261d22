"""Compute capabilities: which code runs on which GPU, what the torch wheels hold, which GPU is Blackwell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from fsdp_doctor.tables.versions import Version

CHECKED_ON = "2026-08-31"

Capability = tuple[int, int]

_ARCH = re.compile(r"(sm|compute)_([0-9]{1,3})([0-9])([af]?)\Z")


class Support(str, Enum):
    """What a build holds for a GPU."""

    SASS = "machine code"
    PTX = "PTX only"
    NONE = "nothing"


def support(arch_list: Iterable[str], capability: Capability) -> Support:
    """What a list such as `sm_80 sm_90a compute_120` holds for a GPU of `capability`.

    Machine code runs on its own major version from its minor version on; an `a` target runs on exactly
    its own capability; PTX is compiled by the driver for its own and every later capability.
    """
    major, minor = capability
    ptx = False
    for text in arch_list:
        found = _ARCH.match(text.strip())
        if not found:
            continue
        kind, suffix = found.group(1), found.group(4)
        target = (int(found.group(2)), int(found.group(3)))
        fits = target == capability if suffix == "a" else target[0] == major and target[1] <= minor
        if kind == "sm" and fits:
            return Support.SASS
        if kind == "compute" and (fits if suffix else target <= capability):
            ptx = True
    return Support.PTX if ptx else Support.NONE


def sm(capability: Capability) -> str:
    """The name of a capability as compilers write it: sm_90."""
    return f"sm_{capability[0]}{capability[1]}"


# torch RELEASE.md (main, 2026-08), pytorch#146265, #158301, #172352; the runtime's own
# torch.cuda.get_arch_list() goes before this table, which only serves to name a wheel that fits.
_TO_HOPPER = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
_FROM_VOLTA = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
_FROM_TURING = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
_X86: Mapping[str, str] = {
    "cu118": _TO_HOPPER,
    "cu121": _TO_HOPPER,
    "cu124": _TO_HOPPER,
    "cu126": _TO_HOPPER,
    "cu128": _FROM_VOLTA,
    "cu129": _FROM_VOLTA,
    "cu130": _FROM_TURING + " compute_120",
    "cu132": _FROM_TURING + " compute_120",
}
_ARM: Mapping[str, str] = {
    "cu126": "sm_80 sm_90",
    "cu128": "sm_90 sm_100 sm_120",
    "cu129": "sm_90 sm_100 sm_120",
    "cu130": "sm_80 sm_90 sm_100 sm_110 sm_120 compute_120",
    "cu132": "sm_80 sm_90 sm_100 sm_110 sm_120 compute_120",
}
WITHOUT_VOLTA_CU128: tuple[Version, ...] = ((2, 7),)
"""torch releases up to 2.10 whose cu128 wheel has no sm_70; from 2.11 on none has."""


def wheel_archs(release: Version, tag: str, machine: str) -> tuple[str, ...]:
    """The targets of a Linux wheel of torch `release` (major, minor) from index `tag`; empty if not known."""
    table = _ARM if machine in ("aarch64", "arm64") else _X86
    archs = table.get(tag, "").split()
    if tag == "cu128" and (release[:2] in WITHOUT_VOLTA_CU128 or release >= (2, 11)):
        archs = [a for a in archs if a != "sm_70"]
    return tuple(archs)


# PCI device identifiers of Blackwell chips: GB100/GB102, GB20x and GB10, GB110.
BLACKWELL_IDS: tuple[tuple[int, int], ...] = ((0x2900, 0x29FF), (0x2B80, 0x2FFF), (0x3180, 0x31FF))


def is_blackwell(capability: Capability | None = None, device_id: int | None = None) -> bool:
    """Whether a GPU is Blackwell (10.x, 11.x, 12.x), by capability or by PCI device identifier."""
    if capability is not None:
        return capability[0] in (10, 11, 12)
    return device_id is not None and any(low <= device_id <= high for low, high in BLACKWELL_IDS)
