"""The extended configuration space of a PCI Express function: is Access Control Services on?"""

from __future__ import annotations

import struct

HEADER = 64
"""Bytes that an ordinary user may read."""
BASE = 256
"""The extended capabilities begin behind the conventional 256 bytes."""
END = 4096
ACS_ID = 0x000D
CONTROL_OFFSET = 6
POINTER_STEP = 4
PCIE_ID = 0x10
HAS_CAPABILITIES = 0x0010


def acs(config: bytes) -> tuple[bool | None, int | None]:
    """(has the capability, its control register) of a configuration space as sysfs shows it.

    (None, None) where the extended part is not there to read, as for an ordinary user.
    """
    if len(config) <= BASE:
        conventional = len(config) == BASE and not _is_express(config)
        return (False, None) if conventional else (None, None)
    offset, seen = BASE, set[int]()
    while BASE <= offset <= len(config) - POINTER_STEP and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            break
        if header & 0xFFFF == ACS_ID:
            if offset + CONTROL_OFFSET + 2 > len(config):
                return True, None
            return True, int(struct.unpack_from("<H", config, offset + CONTROL_OFFSET)[0])
        offset = header >> 20 & ~3
        if offset == 0:
            return False, None
    cut = offset not in seen and offset < END
    lost = config[:4] == b"\xff\xff\xff\xff"
    return (None, None) if cut or lost else (False, None)


def _is_express(config: bytes) -> bool:
    """Whether the conventional capabilities include PCI Express."""
    if not struct.unpack_from("<H", config, 6)[0] & HAS_CAPABILITIES:
        return False
    offset, seen = config[0x34] & ~3, set[int]()
    while HEADER <= offset <= BASE - 2 and offset not in seen:
        seen.add(offset)
        if config[offset] == PCIE_ID:
            return True
        offset = config[offset + 1] & ~3
    return False
