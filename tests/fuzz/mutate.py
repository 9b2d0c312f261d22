"""Bytes changed at random, with the pieces that readers look for put in."""

from __future__ import annotations

import random
from collections.abc import Sequence

TOKENS = (
    *(b"[rank3]: ", b"[default0]:", b"12: ", b"[1,4]<stderr>:", b"host7:811:902 [3] NCCL WARN ", b"pod-3 "),
    *(b"Traceback (most recent call last):\n", b'  File "a.py", line 3, in f\n', b"ValueError: x\n"),
    *(b"\r", b"\n\n\n", b"\x1b[31m", b"\x1b]0;", b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\x80", b"\xe2\x80"),
    *(b"CUDA out of memory. Tried to allocate 99999999999999999999999.00 GiB", b"SeqNum=" + b"9" * 40),
    *(b"2026-02-30T25:61:61", b"exitcode  : -999999999999", b"rank 4294967296", b"Xid (PCI:0000:00:06): 79"),
    *(b"{" * 64, b"[" * 500, b'"', b"\\u0000", b"\\ud800", b"1e999", b"NaN", b"-0", b"null", b",", b"}"),
    *(b"\x80\x02", b"cos\nsystem\n", b"\x93", b"\x81", b"R", b"b", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f"),
    *(b"X\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"\x96" + b"\xff" * 8, b"PK\x03\x04", b"PK\x05\x06"),
    *(b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b"ustar"),
)
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF)
MOST = 1 << 18


def changed(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """One to eight changes of one seed; at most 256 KiB."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(found) + 1)
        size = min(chance.choice((1, 2, 4, 16, 200)), len(found) - at)
        what = chance.randrange(8)
        if what == 0 and size:
            found[at] = chance.choice(NUMBERS) if chance.random() < 0.5 else chance.randrange(256)
        elif what == 1:
            del found[at : at + size]
        elif what == 2:
            found[at:at] = found[at : at + size] * chance.choice((1, 3, 50))
        elif what == 3:
            found[at:at] = chance.choice(TOKENS)
        elif what == 4:
            found[at : at + size] = chance.choice(TOKENS)
        elif what == 5:
            del found[at:]
        elif what == 6 and size:
            found[at : at + size] = chance.randbytes(size)
        else:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            found[at:at] = other[start : start + chance.choice((20, 400, 4000))]
    return bytes(found[:MOST])
