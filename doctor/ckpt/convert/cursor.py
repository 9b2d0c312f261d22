"""Read the values of one part of a tensor from front to back, in blocks, and compare their checksum."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import BinaryIO

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.convert.model import ConvertError, Source
from fsdp_doctor.ckpt.pickled_tensor import pickled_tensor
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.ckpt.window import Window
from fsdp_doctor.tables.torch_dtypes import item_bytes

BLOCK = 4 << 20
OPEN_FILES = 64


class Files:
    """Files of the source, few of them open at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, BinaryIO] = {}
        self.pool = ThreadPoolExecutor(1)
        self._buffers: list[bytearray] = []

    def get(self, path: str) -> BinaryIO:
        """An open file. Raises `ConvertError`."""
        found = self._open.pop(path, None)
        if found is None:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            try:
                found = self._store.open(path)
            except OSError as error:
                raise ConvertError(f"{path[:200]!a} cannot be read: {error.strerror or error}") from None
        self._open[path] = found
        return found

    def buffer(self) -> bytearray:
        """Room for one block; give it back."""
        return self._buffers.pop() if self._buffers else bytearray(BLOCK)

    def back(self, buffer: bytearray) -> None:
        """Let it be used again."""
        self._buffers.append(buffer)


Piece = tuple[memoryview, "Future[int] | None"]
"""Bytes, and their CRC-32 where that is being computed anyway. Valid until the next one is asked for."""


class Cursor:
    """The values of one `Source`."""

    def __init__(self, files: Files, source: Source, dtype: str) -> None:
        self._files, self._source = files, source
        self.size = prod(source.sizes) * (item_bytes(dtype) or 1)
        self._at, self._wanted = source.start, source.crc
        self._read, self._crc = 0, 0
        if source.archive and self.size:
            self._inside(dtype)

    def _inside(self, dtype: str) -> None:
        """Find the values in their archive, which must be what the metadata says."""
        source = self._source
        where = f"{source.file}, the item at byte {source.start}"
        file = self._files.get(source.file)
        window = io.BufferedReader(Window(file, source.start, source.length), 1 << 13)
        try:
            archive, loaded = torch_zip.read(window, source.length)
        except (torch_zip.ZipError, OSError) as error:
            raise ConvertError(f"{where}: {error}") from None
        tensor = pickled_tensor(loaded.value)
        piece = tensor.pieces[0] if tensor is not None and tensor.pieces else None
        if tensor is None or piece is None or piece.storage is None:
            raise ConvertError(f"{where}: holds no tensor")
        if archive.byteorder == "big":
            raise ConvertError(f"{where}: written on a big-endian machine")
        if (tensor.shape, tensor.dtype) != (source.sizes, dtype) or not piece.contiguous:
            strided = "" if piece.contiguous else ", strided"
            raise ConvertError(
                f"{where}: holds {tensor.dtype} {list(tensor.shape)}{strided}; "
                f"the metadata says {dtype} {list(source.sizes)}"
            )
        stored = archive.storage(piece.storage.key)
        at = None if stored is None else torch_zip.data_offset(file, stored, source.start)
        if stored is None or at is None or stored.size < piece.start + self.size:
            raise ConvertError(f"{where}: its storage is too short")
        self._at = at + piece.start
        self._wanted = stored.crc if stored.size == self.size and stored.crc else None

    def blocks(self, count: int) -> Iterator[Piece]:
        """The next `count` bytes. Raises `ConvertError` where the file ends, or the checksum is wrong."""
        while count:
            buffer = self._files.buffer()
            step = min(count, BLOCK)
            view = memoryview(buffer)[:step]
            self.into(view, summed=False)
            future = self._files.pool.submit(zlib.crc32, view)
            yield view, future
            self._sum(future.result(), step)
            self._files.back(buffer)
            count -= step

    def skip(self, count: int) -> None:
        """Leave out bytes that were written before; there is then no checksum to compare."""
        self._read += count
        self._wanted = None

    def into(self, view: memoryview, summed: bool = True) -> None:
        """Fill a buffer with the next bytes."""
        file = self._files.get(self._source.file)
        file.seek(self._at + self._read)
        got = 0
        while got < len(view):
            more = file.readinto(view[got:])  # type: ignore[attr-defined]
            if not more:
                raise ConvertError(f"{self._source.file} ended while it was read")
            got += more
        self._read += got
        if summed:
            self._sum(zlib.crc32(view), got)

    def _sum(self, crc: int, length: int) -> None:
        from fsdp_doctor.ckpt.checksums import combined

        self._crc = combined(self._crc, crc, length) if self._crc or self._read > length else crc
        if self._read == self.size and self._wanted is not None and self._crc != self._wanted:
            raise ConvertError(
                f"{self._source.file}: the values at byte {self._at} do not match their stored CRC-32; "
                "copy the file again (`ckpt inspect --verify` lists all such places)"
            )
