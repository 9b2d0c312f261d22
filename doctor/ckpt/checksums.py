"""A checksum of a tensor's values, from the CRC-32s that are stored, without reading the data.

The CRC of a whole follows from the CRCs of its parts where these are rows one after the other, so that
saves on different numbers of ranks, and full files, can be compared. What stores none is read.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from math import prod

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.reading import open_store
from fsdp_doctor.ckpt.window import Window
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, Format, Tensor
from fsdp_doctor.subjects.checkpoint_chunks import Chunk
from fsdp_doctor.tables.torch_dtypes import item_bytes

BLOCK = 4 << 20
ARCHIVES = (Format.DCP, Format.DCP_PER_RANK)
WHOLE_FILES = (Format.TORCH_FULL, Format.SHARDED_PER_RANK, Format.DTENSOR_PER_RANK, Format.LOCAL_PER_RANK)


class Checksums:
    """Checksums of the tensors of one checkpoint."""

    def __init__(self, index: CheckpointIndex, path: str) -> None:
        self._index = index
        self._store = open_store(path)
        self._directories: dict[str, dict[int, int]] = {}

    def of(self, tensor: Tensor) -> int | None:
        """CRC-32 of the tensor's bytes in order; None where parts are no rows, or cannot be read."""
        ordered = _rows(tensor)
        if ordered is None or tensor.contiguous is False:
            return None
        item = item_bytes(tensor.dtype)
        if item is None:
            return None
        crc = 0
        for chunk in ordered:
            size = prod(chunk.sizes) * item
            own = self._chunk(chunk, size)
            if own is None:
                return None
            crc = combined(crc, own, size)
        return crc

    def _chunk(self, chunk: Chunk, size: int) -> int | None:
        if chunk.file is None or chunk.start is None or chunk.length is None:
            return None
        path = self._index.files[chunk.file].path
        try:
            if self._index.format in ARCHIVES:
                return self._archive(path, chunk.start, chunk.length, size)
            if self._index.format in WHOLE_FILES:
                known = self._directory(path).get(chunk.start)
                if known is not None and chunk.length == size:
                    return known
            return self._read(path, chunk.start, size)
        except (OSError, zipfile.BadZipFile, torch_zip.ZipError, ValueError, NotImplementedError):
            return None

    def _archive(self, path: str, start: int, length: int, size: int) -> int | None:
        with self._store.open(path) as file:
            window = io.BufferedReader(Window(file, start, length), 1 << 13)
            torch_zip.precheck(window, length)
            with zipfile.ZipFile(window) as archive:
                data = [i for i in archive.infolist() if "/data/" in i.filename]
            # One storage, filled by the chunk: otherwise the pickle would have to say where it lies.
            if len(data) != 1 or data[0].file_size != size:
                return None
            if data[0].CRC or not size:
                return data[0].CRC
            at = torch_zip.data_offset(file, torch_zip.Stored(data[0].header_offset, size, 0), start)
        return None if at is None else self._read(path, at, size)

    def _directory(self, path: str) -> dict[int, int]:
        """First byte -> CRC-32 of the storages in a torch.save file."""
        if path not in self._directories:
            found: dict[int, int] = {}
            with self._store.open(path) as file, zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    stored = torch_zip.Stored(info.header_offset, info.file_size, info.CRC)
                    at = torch_zip.data_offset(file, stored)
                    if at is not None and info.CRC:
                        found[at] = info.CRC
            self._directories[path] = found
        return self._directories[path]

    def _read(self, path: str, start: int, size: int) -> int | None:
        crc = 0
        with self._store.open(path) as file:
            file.seek(start)
            while size:
                block = file.read(min(BLOCK, size))
                if not block:
                    return None
                crc = zlib.crc32(block, crc)
                size -= len(block)
        return crc


def _rows(tensor: Tensor) -> Sequence[Chunk] | None:
    """Chunks in the order of their bytes, if each is a run of whole rows and together they are all."""
    chunks = sorted((c for c in tensor.chunks if prod(c.sizes)), key=lambda c: c.offsets)
    if not prod(tensor.shape):
        return ()
    if not tensor.shape:
        return chunks[:1] or None
    at = 0
    for chunk in chunks:
        whole = chunk.sizes[1:] == tensor.shape[1:] and not any(chunk.offsets[1:])
        if not whole or chunk.offsets[0] != at:
            return None
        at += chunk.sizes[0]
    return chunks if at == tensor.shape[0] else None


POLYNOMIAL = 0xEDB88320


def combined(first: int, second: int, length: int) -> int:
    """CRC-32 of two pieces one after the other; `length` is the second's.

    Appending zeros multiplies by a power of x over GF(2); the powers are found by squaring.
    """
    if not length:
        return first
    bit = 0
    while length:
        if length & 1:
            first = _times(_zeros(bit), first)
        length >>= 1
        bit += 1
    return first ^ second


@cache
def _zeros(bit: int) -> tuple[int, ...]:
    """The matrix that appends 2^bit zero bytes."""
    if bit == 0:
        matrix = (POLYNOMIAL, *(1 << n for n in range(31)))  # one zero bit
        for _ in range(3):
            matrix = tuple(_times(matrix, column) for column in matrix)
        return matrix
    before = _zeros(bit - 1)
    return tuple(_times(before, column) for column in before)


def _times(matrix: tuple[int, ...], vector: int) -> int:
    total, row = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total
