"""What is text, in which encoding, and its chunks in UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from fsdp_doctor.diagnosis.readers.sources import CHUNK, Read, Unreadable

BINARY_SHARE = 0.05
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def encoding_of(head: bytes) -> str | None:
    """utf-8, utf-16-le, utf-16-be, or None for what is no text."""
    for bom, name in BOMS:
        if head.startswith(bom):
            return name
    sample = head[:4096]
    if not sample:
        return "utf-8"
    if sample[0] == 0x80:  # a pickle, which may look like UTF-16
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) / 2
    if odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.4 * half and odd < 0.05 * half:
        return "utf-16-be"
    strange = sum(
        sample.count(bytes((c,))) for c in (*range(1, 7), 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 25)
    )
    if sample.count(0) + strange > max(BINARY_SHARE * len(sample), 1):
        return None
    return "utf-8"


def chunks(raw: Read, encoding: str) -> Iterator[bytes]:
    """The text in pieces of UTF-8, what is no text replaced. Raises `Unreadable`."""
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding != "utf-8" else None
    while True:
        try:
            data = raw.read(CHUNK)
        except (OSError, ValueError) as error:
            raise Unreadable(f"cannot be read on: {error}") from None
        if not data:
            return
        yield decoder.decode(data).encode("utf-8") if decoder is not None else data
