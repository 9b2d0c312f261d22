"""Byte sizes: the binary units and how a size is written for people."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40


def size(count: int) -> str:
    """A number of bytes in the largest unit that leaves at least 1, such as "64 MiB" or "1.5 TiB"."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            tenths = count * 10 // unit
            whole, part = divmod(tenths, 10)
            return f"{whole}.{part} {name}" if part and whole < 100 else f"{whole} {name}"
    return f"{count} bytes"


def memory_size(count: int) -> str:
    """Bytes of a GPU's memory: GiB, or MiB below one, or KiB below one of those."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / KIB:.1f} KiB" if 0 < count < MIB else f"{count / MIB:.1f} MiB"


def unit_size(count: float) -> str:
    """Bytes of a unit of parameters, which may be small: "0.3 MiB", "12 KiB"."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB // 4 else f"{count / KIB:.3g} KiB"


def percent(part: int, whole: int) -> int:
    """`part` of `whole` in per cent, rounded down; 0 of 0 is 0."""
    return part * 100 // whole if whole > 0 else 0
