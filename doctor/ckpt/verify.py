"""Read all bytes of a checkpoint once and compare them with the checksums that are stored beside them.

torch.save keeps a CRC-32 per storage, and torch does not look at it: a flipped bit in a weight loads. No
pickle is read here: only zip directories and bytes.
"""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.reading import open_store
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.ckpt.window import Window
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, File, FileRole, Format
from fsdp_doctor.subjects.checkpoint_problem import Harm, Problem, ProblemKind

BLOCK = 4 << 20
Place = tuple[str, int, int]
_Places = defaultdict[int, list[Place]]
Progress = Callable[[int], None]
"""Hears of bytes that have been read since it last heard."""


@dataclass(slots=True)
class Verification:
    """What was compared."""

    files: int = 0
    bytes: int = 0
    checksums: int = 0
    """Storages and files whose checksum was compared."""
    without: list[str] = field(default_factory=list)
    """Files that carry no checksums: safetensors, legacy files."""
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True
    """False where the deadline came first."""
    seconds: float = 0.0


class _Late(Exception):
    """The deadline came."""


def total(index: CheckpointIndex) -> int:
    """Bytes that `verify` will read."""
    return sum(f.size or 0 for _, f in _files(index))


def _files(index: CheckpointIndex) -> list[tuple[int, File]]:
    roles = (FileRole.DATA, FileRole.STATE)
    listed = index.manifest.files if index.manifest is not None else {}
    return [
        (i, f)
        for i, f in enumerate(index.files)
        if f.size and f.unreadable is None and ((f.role in roles and f.referenced) or f.path in listed)
    ]


def verify(
    index: CheckpointIndex, path: str, progress: Progress = lambda read: None, until: float | None = None
) -> Verification:
    """Read every data file of the checkpoint. `until` is a time of the monotonic clock."""
    began = time.monotonic()
    found = Verification()
    store = open_store(path)
    places = _places(index)
    for at, file in _files(index):
        try:
            _file(found, index, store, (at, file), places, _Counted(found, progress, until))
        except _Late:
            found.complete = False
            break
        except OSError as error:
            found.problems.append(
                Problem(
                    ProblemKind.FILE_FORBIDDEN,
                    Harm.BROKEN,
                    f"{file.path} cannot be read to its end: {error.strerror or error}",
                    file.path,
                )
            )
    found.seconds = time.monotonic() - began
    return found


def _file(
    found: Verification,
    index: CheckpointIndex,
    store: Store,
    numbered: tuple[int, File],
    places: _Places,
    counted: _Counted,
) -> None:
    at, file = numbered
    found.files += 1
    said = index.manifest.files.get(file.path) if index.manifest is not None else None
    with store.open(file.path) as opened:
        if said is not None and said.sha256 is not None:
            digest = hashlib.sha256()
            for block in counted.blocks(opened, file.size or 0):
                digest.update(block)
            found.checksums += 1
            if digest.hexdigest() != said.sha256:
                found.problems.append(_wrong(file.path, "the SHA-256 of the manifest", [], 0))
            return
        if file.role not in (FileRole.DATA, FileRole.STATE):
            return  # no archive
        items = _items(index, file, at, places)
        if items is None:
            found.without.append(file.path)
            return
        for key, start, length in items:
            _item(found, opened, file.path, key, start, length, counted)


def _items(index: CheckpointIndex, file: File, at: int, places: _Places) -> list[Place] | None:
    """Key, start and length of each archive in a file; None where it holds no archives."""
    if index.format is Format.TORCH_LEGACY:
        return None
    if index.format in (Format.SAFETENSORS, Format.DCP_SAFETENSORS) and file.role is FileRole.DATA:
        return None
    return sorted(places[at], key=lambda p: p[1]) if file.items else [("", 0, file.size or 0)]


def _places(index: CheckpointIndex) -> _Places:
    """All archives of DCP's data files, by file."""
    found: _Places = defaultdict(list)
    for tensor in index.tensors:
        for chunk in tensor.chunks:
            if chunk.file is not None and chunk.start is not None and chunk.length:
                found[chunk.file].append((tensor.key, chunk.start, chunk.length))
    for entry in index.entries:
        if entry.file is not None and entry.start is not None and entry.length:
            found[entry.file].append((entry.key, entry.start, entry.length))
    return found


def _item(
    found: Verification,
    file: BinaryIO,
    path: str,
    key: str,
    start: int,
    length: int,
    counted: _Counted,
) -> None:
    """One archive: every entry's bytes against its CRC-32."""
    window = io.BufferedReader(Window(file, start, length), 1 << 16)
    try:
        torch_zip.precheck(window, length)
        with zipfile.ZipFile(window) as archive:
            infos = sorted(archive.infolist(), key=lambda i: i.header_offset)
    except (zipfile.BadZipFile, torch_zip.ZipError, ValueError, NotImplementedError) as error:
        found.problems.append(
            Problem(
                ProblemKind.ZIP_DAMAGED,
                Harm.BROKEN,
                f"{path}: the item at byte {start} is no whole archive: {error}",
                path,
                (key,) if key else (),
                1 if key else 0,
            )
        )
        return
    wrong = []
    for info in infos:
        stored = torch_zip.Stored(info.header_offset, info.compress_size, info.CRC)
        at = torch_zip.data_offset(file, stored, start)
        if at is None or at + stored.size > start + length:
            wrong.append(info.filename)
            continue
        if not info.CRC and stored.size and "/data/" in info.filename:
            continue  # saved with torch.serialization.set_crc32_options(False)
        file.seek(at)
        crc = 0
        for block in counted.blocks(file, stored.size):
            crc = zlib.crc32(block, crc)
        found.checksums += 1
        if crc != info.CRC:
            wrong.append(info.filename)
    if wrong:
        found.problems.append(_wrong(path, f"the CRC-32 of {wrong[0][:100]!a}", [key] if key else [], start))


def _wrong(path: str, what: str, keys: list[str], start: int) -> Problem:
    where = f" (item at byte {start})" if start or keys else ""
    return Problem(
        ProblemKind.CHECKSUM,
        Harm.BROKEN,
        f"{path}{where}: stored bytes do not match {what}; torch loads them without a word",
        path,
        tuple(keys),
        len(keys),
    )


class _Counted:
    """Reads in blocks, tells of them, and heeds the deadline."""

    def __init__(self, found: Verification, progress: Progress, until: float | None) -> None:
        self._found, self._progress, self._until = found, progress, until

    def blocks(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        """The next `size` bytes. Raises `OSError` where the file ends before."""
        while size:
            if self._until is not None and time.monotonic() > self._until:
                raise _Late
            block = file.read(min(BLOCK, size))
            if not block:
                raise OSError("it ended while it was read")
            size -= len(block)
            self._found.bytes += len(block)
            self._progress(len(block))
            yield block
