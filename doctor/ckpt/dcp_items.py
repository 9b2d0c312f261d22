"""Values inside DCP's data files: objects that are no tensors, and a few steps. Each is a small archive."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.draft import Draft, EntryDraft, TensorDraft
from fsdp_doctor.ckpt.limits import BLOB_BYTES, BLOBS
from fsdp_doctor.ckpt.pickled_tensor import pickled_tensor
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.ckpt.torch_content import entry_of
from fsdp_doctor.ckpt.torch_file import scalar
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

STEPS_PER_FILE = 8
STEP_NAMES = ("step", "global_step", "iteration", "iter", "num_steps", "epoch")


class Reader:
    """Reads items; each file is opened once while its items follow each other."""

    def __init__(self, store: Store, foreign: Iterable[str] = ()) -> None:
        self._store = store
        self._failed: set[str] = set(foreign)

    def item(self, path: str, start: int, length: int) -> tuple[torch_zip.Archive, object, bytes] | None:
        """The directory, the pickled value and the bytes of one item; None where there is none.

        Raises `ZipError` for bytes that are no archive.
        """
        if path in self._failed or length > BLOB_BYTES:
            return None
        try:
            with self._store.open(path) as file:
                file.seek(start)
                raw = file.read(length)
        except OSError:
            self._failed.add(path)
            return None
        if len(raw) < length or not raw.startswith(torch_zip.MAGIC):
            return None
        archive, loaded = torch_zip.read(io.BytesIO(raw), len(raw))
        self.names = loaded.names
        return archive, loaded.value, raw


def read_items(draft: Draft, folder: str, foreign: Iterable[str] = ()) -> None:
    """Fill in values of entries and steps of files, but not in files of another save."""
    reader = Reader(draft.store, foreign)
    entries = [e for e in draft.entries if e.part == folder and e.file is not None]
    for entry in entries[:BLOBS]:
        _value(draft, reader, entry)
    if len(entries) > BLOBS:
        draft.cut(f"values of {len(entries) - BLOBS} of {len(entries)} objects were not read")
    _steps(draft, reader, folder)


def _value(draft: Draft, reader: Reader, entry: EntryDraft) -> None:
    if entry.file is None or entry.start is None or entry.length is None:
        return
    path = draft.files[entry.file].path
    try:
        found = reader.item(path, entry.start, entry.length)
    except torch_zip.ZipError as error:
        draft.names(error.names, path)
        draft.problem(
            error.kind,
            Harm.BROKEN,
            f"{path}: the object {entry.key[:100]!r} at byte {entry.start}: {error}",
            path,
            (entry.key,),
        )
        return
    if found is None:
        return
    draft.names(reader.names, path)
    read = entry_of(entry.path, found[1])
    entry.value, entry.elements, entry.type, entry.value_read = read.value, read.elements, read.type, True


def _steps(draft: Draft, reader: Reader, folder: str) -> None:
    """Steps that the optimizer's state holds: files of one save agree on them."""
    tried: dict[int, int] = {}
    steps = [t for t in draft.tensors.values() if t.part == folder and _is_step(t)]
    for tensor in sorted(steps, key=lambda t: t.key.count(".")):  # the run's own before the optimizer's
        width = 2 * len(tensor.shape) + 4
        for at in range(0, len(tensor.place), width):
            file, start, length = tensor.place[at + width - 4 : at + width - 1]
            if file < 0 or tried.get(file, 0) >= STEPS_PER_FILE or sum(tried.values()) >= BLOBS:
                continue
            tried[file] = tried.get(file, 0) + 1
            value = _number(draft, reader, draft.files[file].path, start, length)
            if value is not None and math.isfinite(value) and value == int(value):
                if tensor.key.rsplit(".", 1)[-1] == "step" and len(tensor.key.split(".")) > 3:
                    draft.files[file].steps.add(int(value))
                draft.numbers[tensor.key] = int(value)


def _is_step(tensor: TensorDraft) -> bool:
    return math.prod(tensor.shape) == 1 and tensor.key.rsplit(".", 1)[-1] in STEP_NAMES


def _number(draft: Draft, reader: Reader, path: str, start: int, length: int) -> float | int | None:
    try:
        found = reader.item(path, start, length)
    except torch_zip.ZipError as error:
        draft.problem(
            ProblemKind.FILE_FOREIGN, Harm.BROKEN, f"{path}: the item at byte {start}: {error}", path
        )
        return None
    if found is None:
        return None
    archive, value, raw = found
    tensor = pickled_tensor(value)
    if tensor is None or not tensor.pieces or tensor.pieces[0].storage is None:
        return None
    piece = tensor.pieces[0]
    assert piece.storage is not None
    stored = archive.storage(piece.storage.key)
    return None if stored is None else scalar(io.BytesIO(raw), stored, piece.start, tensor.dtype)
