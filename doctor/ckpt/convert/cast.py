"""Cast blocks of floating-point values as torch does: to the nearest, ties to even. No library."""

from __future__ import annotations

import struct
import sys
from array import array

from fsdp_doctor.ckpt.convert.model import ConvertError

FLOATS = ("float64", "float32", "float16", "bfloat16")
EXPONENT, QUIET = 0x7F800000, 0x7FC0


def cast(view: memoryview, dtype: str, to: str) -> bytes | bytearray:
    """The values in another dtype. Raises `ConvertError` for finite values that it cannot hold."""
    if to == dtype:
        return bytes(view)
    if to == "bfloat16":
        single = view if dtype == "float32" else memoryview(cast(view, dtype, "float32"))
        return _narrow(single)
    if dtype == "bfloat16":
        wide = bytearray(2 * len(view))
        wide[2::4], wide[3::4] = view[0::2], view[1::2]
        return wide if to == "float32" else cast(memoryview(wide), "float32", to)
    if to == "float16":
        return _half(view, dtype)
    if dtype == "float16":
        numbers: array[float] = array("d" if to == "float64" else "f", _halves(view))
        return numbers.tobytes()
    source: array[float] = array("d" if dtype == "float64" else "f")
    source.frombytes(view)
    return array("d" if to == "float64" else "f", source).tobytes()


def _halves(view: memoryview) -> tuple[float, ...]:
    return struct.unpack(f"<{len(view) // 2}e", view)


def _half(view: memoryview, dtype: str) -> bytes:
    source: array[float] = array("d" if dtype == "float64" else "f")
    source.frombytes(view)
    try:
        return struct.pack(f"<{len(source)}e", *source)
    except OverflowError:
        raise ConvertError("values beyond the range of float16 (65504): cast to bfloat16 instead") from None


def _narrow(view: memoryview) -> bytearray:
    """float32 to bfloat16: all lanes of a block at once, in one long integer."""
    assert sys.byteorder == "little"
    count = len(view) // 4
    words: array[int] = array("I")
    words.frombytes(view)
    special = [i for i in range(count) if words[i] & EXPONENT == EXPONENT] if _any_special(view) else []
    kept = [words[i] for i in special]
    for i in special:
        words[i] = 0  # no carry into the neighbour
    number = int.from_bytes(words.tobytes(), "little")
    ones = int.from_bytes(b"\1\0\0\0" * count, "little")
    number += ((number >> 16) & ones) + ones * 0x7FFF
    raw = number.to_bytes(4 * count + 1, "little")
    out = bytearray(2 * count)
    out[0::2], out[1::2] = raw[2 : 4 * count : 4], raw[3 : 4 * count : 4]
    for i, word in zip(special, kept, strict=True):
        short = word >> 16 if not word & 0x7FFFFF else QUIET
        out[2 * i : 2 * i + 2] = short.to_bytes(2, "little")
    return out


def _any_special(view: memoryview) -> bool:
    """Whether an exponent of all ones is there: looked for in the highest bytes."""
    high = bytes(view[3::4])
    return 0x7F in high or 0xFF in high
