"""One torch.save file of a checkpoint: read, checked against its own pickle, noted in the draft."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import BinaryIO

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.draft import Draft
from fsdp_doctor.ckpt.pickled_tensor import Pickled
from fsdp_doctor.ckpt.safe_pickle import PickleError, load
from fsdp_doctor.ckpt.torch_content import Content, content_of, key_of
from fsdp_doctor.subjects.checkpoint import FileRole
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.tables.torch_dtypes import SCALAR_FORMATS

LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
STEP_READS = 16


@dataclass(frozen=True, slots=True)
class TorchFile:
    """What one file holds and where."""

    path: str
    index: int
    """In `Draft.files`."""
    archive: torch_zip.Archive
    content: Content
    starts: dict[str, int]
    """Storage key -> first byte in the file, for those that were looked up."""

    def value(self, draft: Draft, tensor: Pickled) -> float | int | bool | None:
        """The number in a tensor of one element; None where it cannot be read."""
        if not tensor.pieces or math.prod(tensor.shape) != 1 or tensor.pieces[0].storage is None:
            return None
        piece = tensor.pieces[0]
        assert piece.storage is not None
        stored = self.archive.storage(piece.storage.key)
        if stored is None or stored.size < piece.start + 1 or self.archive.byteorder == "big":
            return None
        try:
            with draft.store.open(self.path) as file:
                return scalar(file, stored, piece.start, tensor.dtype)
        except OSError:
            return None


def scalar(
    file: BinaryIO, stored: torch_zip.Stored, start: int, dtype: str, base: int = 0
) -> float | int | bool | None:
    """One number of a storage."""
    code = SCALAR_FORMATS.get(dtype)
    at = torch_zip.data_offset(file, stored, base)
    if code is None or at is None:
        return None
    file.seek(at + start)
    raw = file.read(struct.calcsize(code))
    if len(raw) != struct.calcsize(code):
        return None
    number: float | int | bool = struct.unpack("<" + code, raw)[0]
    return number


def read(draft: Draft, path: str, role: FileRole = FileRole.DATA, part: str = "") -> TorchFile | None:
    """Read one torch.save file into memory, without its tensors. Notes problems and then gives None."""
    index = draft.file(path, role, part)
    entry = draft.files[index]
    entry.referenced = True
    node = draft.nodes.get(path)
    shown = path or draft.store.root.rstrip("/").rsplit("/", 1)[-1]
    if node is None or not node.regular or node.size is None:
        return None  # what stands there is noted for all files at once
    if node.size == 0:
        draft.problem(
            ProblemKind.FILE_SHORT, Harm.BROKEN, f"{shown} is empty: 0 bytes", path, bytes=0, rank=entry.rank
        )
        return None
    try:
        with draft.store.open(path) as file:
            head = file.read(64)
            if not head.startswith(torch_zip.MAGIC):
                kind, words = strange(head, node.size)
                if kind is ProblemKind.NOT_A_CHECKPOINT:
                    plain_pickle(draft, path, node.size)
                draft.problem(kind, Harm.BROKEN, f"{shown}: {words}", path, rank=entry.rank)
                return None
            archive, loaded = torch_zip.read(file, node.size)
    except torch_zip.ZipError as error:
        draft.names(error.names, path)
        harm = Harm.UNSAFE if error.kind is ProblemKind.ZIP_HOSTILE else Harm.BROKEN
        draft.problem(error.kind, harm, f"{shown}: {error}", path, bytes=node.size, rank=entry.rank)
        return None
    except OSError as error:
        draft.problem(
            ProblemKind.FILE_FORBIDDEN,
            Harm.BROKEN,
            f"{shown} cannot be read: {error.strerror or error}",
            path,
        )
        return None
    draft.names(loaded.names, path)
    content = content_of(loaded.value)
    if content.cut:
        draft.cut(f"{shown}: values that nest too deep or are too many")
    _compare(draft, path, shown, archive, content)
    return TorchFile(path, index, archive, content, {})


def plain_pickle(draft: Draft, path: str, size: int) -> None:
    """Note what a file names if it is a bare pickle: torch.load(weights_only=False) runs it, too."""
    try:
        with draft.store.open(path) as file:
            draft.names(load(file, size).names, path)
    except PickleError as error:
        draft.names(error.names, path)
    except OSError:
        return  # noted when files are looked at as such


def strange(head: bytes, size: int) -> tuple[ProblemKind, str]:
    """What a file is that is no zip."""
    if head.startswith(LEGACY):
        return ProblemKind.UNSUPPORTED, "a torch.save file of before torch 1.6 (legacy, not a zip)"
    if size > 8 and int.from_bytes(head[:8], "little") < size and head[8:9] == b"{":
        return ProblemKind.METADATA_STRANGE, "a safetensors file under a name of torch.save"
    if not any(head):
        return (
            ProblemKind.ZIP_DAMAGED,
            f"{size} bytes that begin with zeros: written sparsely or never filled",
        )
    if head.startswith(b"version https://git"):
        return ProblemKind.UNSUPPORTED, "a Git LFS pointer, not the file: run `git lfs pull`"
    return ProblemKind.NOT_A_CHECKPOINT, f"no torch.save file: it begins with the bytes {head[:8].hex(' ')}"


def _compare(draft: Draft, path: str, shown: str, archive: torch_zip.Archive, content: Content) -> None:
    """Every storage that the pickle names must be there and as long as dtype and count make it."""
    wrong: list[str] = []
    first = ""
    for key, storage in content.storages.items():
        stored = archive.storage(key)
        have = None if stored is None else stored.size
        if have is None or have < storage.bytes:
            wrong.append(key)
            first = first or (
                f"storage {key} holds {'nothing' if have is None else f'{have} bytes'}, its tensor needs "
                f"{storage.bytes}"
            )
    if wrong:
        bad = set(wrong)
        keys = [
            key_of(p)
            for p, t in content.tensors
            if any(x.storage is not None and x.storage.key in bad for x in t.pieces)
        ]
        draft.problem(ProblemKind.STORAGE_SIZE, Harm.BROKEN, f"{shown}: {first}", path, keys)


def step_values(draft: Draft, file: TorchFile) -> set[int]:
    """Steps in the optimizer state of a file: its tensors named "step", a few of them."""
    steps: set[int] = set()
    tried = 0
    for path, tensor in file.content.tensors:
        if path[-1:] == ("step",) and tried < STEP_READS and math.prod(tensor.shape) == 1:
            tried += 1
            value = file.value(draft, tensor)
            if value is not None and math.isfinite(value) and value == int(value):
                steps.add(int(value))
    return steps
