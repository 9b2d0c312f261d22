"""torch.save archives: zip files as torch writes them, made from front to back."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fsdp_doctor.ckpt.convert.model import TensorLeaf
from fsdp_doctor.ckpt.convert.opcodes import Pickle
from fsdp_doctor.tables.torch_dtypes import STORAGES, item_bytes

ALIGNMENT = 64
FLAGS = 0x0808
"""Checksum and sizes behind the data, names in UTF-8."""
STAMP = struct.pack("<HH", 0, 0x21)
LIMIT = 0xFFFFFFFF
TYPED = {dtype: name for name, dtype in STORAGES.items() if not dtype.startswith("q")}


class TensorPickle(Pickle):
    """A pickle whose tensors refer to storages beside it; each distinct one is noted in `storages`."""

    def __init__(self) -> None:
        super().__init__(2)
        self.storages: dict[tuple[object, ...], tuple[str, TensorLeaf]] = {}

    def other(self, value: object, key: str) -> None:
        """Tensors; the rest is refused."""
        if not isinstance(value, TensorLeaf):
            super().other(value, key)
            return
        place = (value.sources, value.written, value.shape) if value.bytes else (len(self.storages),)
        number, _ = self.storages.setdefault(place, (str(len(self.storages)), value))
        self.tensor(number, value.written, value.shape, value.requires_grad)

    def tensor(self, storage: str, dtype: str, shape: tuple[int, ...], requires_grad: bool = False) -> None:
        """A contiguous tensor that fills the storage of this number."""
        count = 1
        strides: list[int] = []
        for length in reversed(shape):
            strides.insert(0, count)
            count *= max(length, 1)
        elements = 0 if 0 in shape else count
        typed = TYPED.get(dtype)
        self.name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
        self.out += b"(("
        self.text("storage")
        if typed:
            self.name("torch", typed)
        else:
            self.name("torch.storage", "UntypedStorage")
            elements *= item_bytes(dtype) or 1
        self.text(storage)
        self.text("cpu")
        self.number(elements)
        self.out += b"tQ"
        self.number(0)
        self.numbers(shape)
        self.numbers(tuple(strides))
        self.truth(requires_grad)
        self.ordered()
        if not typed:
            self.name("torch", dtype)
        self.out += b"tR"


@dataclass(slots=True)
class Directory:
    """The directory of a zip file that is being written; offsets count from the archive's beginning."""

    root: str
    entries: bytearray = field(default_factory=bytearray)
    count: int = 0

    def header(self, name: str, at: int) -> bytes:
        """What stands before the data of an entry at `at`, so that its data begin at a multiple of 64."""
        raw = f"{self.root}/{name}".encode()
        pad = -(at + 30 + len(raw) + 4) % ALIGNMENT
        extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
        fixed = struct.pack("<4sHHH4sIIIHH", b"PK\3\4", 0, FLAGS, 0, STAMP, 0, 0, 0, len(raw), len(extra))
        return fixed + raw + extra

    def footer(self, name: str, at: int, size: int, crc: int) -> bytes:
        """What stands behind the data; notes the entry, whose header stands at `at`."""
        raw = f"{self.root}/{name}".encode()
        large = [n for n in (size, size, at) if n >= LIMIT]
        extra = (
            struct.pack("<HH", 1, 8 * len(large)) + struct.pack(f"<{len(large)}Q", *large) if large else b""
        )
        shown = min(size, LIMIT)
        self.entries += struct.pack(
            "<4sHHHH4sIIIHHHHHII",
            b"PK\1\2", 0, 45 if large else 0, FLAGS, 0, STAMP, crc, shown, shown,
            len(raw), len(extra), 0, 0, 0, 0, min(at, LIMIT),
        )  # fmt: skip
        self.entries += raw + extra
        self.count += 1
        return struct.pack("<4sIQQ" if size >= LIMIT else "<4sIII", b"PK\7\x08", crc, size, size)

    def small(self, name: str, at: int, data: bytes) -> bytes:
        """A whole entry."""
        return self.header(name, at) + data + self.footer(name, at, len(data), zlib.crc32(data))

    def end(self, at: int) -> bytes:
        """The directory itself."""
        length = len(self.entries)
        tail = b""
        if self.count >= 0xFFFF or length >= LIMIT or at >= LIMIT:
            tail = struct.pack(
                "<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, self.count, self.count, length, at
            ) + struct.pack("<4sIQI", b"PK\6\7", 0, at + length, 1)
        return (
            bytes(self.entries)
            + tail
            + struct.pack(
                "<4sHHHHIIH",
                b"PK\5\6", 0, 0, min(self.count, 0xFFFF), min(self.count, 0xFFFF),
                min(length, LIMIT), min(at, LIMIT), 0,
            )
        )  # fmt: skip


def write(
    root: str,
    pickle: bytes,
    storages: Iterable[tuple[str, TensorLeaf]],
    raw: Callable[[bytes], int],
    data: Callable[[TensorLeaf], int],
) -> None:
    """Write one archive. `raw` writes bytes and `data` a tensor's values.

    `raw` returns the place within the archive that comes next, `data` the CRC-32 of what it wrote.
    """
    directory = Directory(root)
    at = raw(directory.small("data.pkl", 0, pickle))
    for name, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little")):
        at = raw(directory.small(name, at, text))
    for number, leaf in storages:
        raw(directory.header(f"data/{number}", at))
        crc = data(leaf)
        at = raw(directory.footer(f"data/{number}", at, leaf.bytes, crc))
    at = raw(directory.small("version", at, b"3\n"))
    mark = f"{zlib.crc32(pickle):020d}{zlib.crc32(directory.entries):020d}".encode()
    at = raw(directory.small(".data/serialization_id", at, mark))
    raw(directory.end(at))
