"""torch.save files: one that holds everything, or one per rank: ShardedTensors, DTensors or flat slices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fsdp_doctor.ckpt.draft import Draft, TensorDraft
from fsdp_doctor.ckpt.parting import local_place
from fsdp_doctor.ckpt.pickled_tensor import Pickled, Piece
from fsdp_doctor.ckpt.torch_content import key_of
from fsdp_doctor.ckpt.torch_file import TorchFile, read, step_values
from fsdp_doctor.ckpt.torch_zip import data_offset
from fsdp_doctor.subjects.checkpoint import Container, FileRole, Format, Kind
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource


def read_full(draft: Draft, path: str, holds: Kind = Kind.MODEL, part: str = "") -> TorchFile | None:
    """One file of whole tensors (or one rank's file, given alone). Sets the format by what it holds."""
    file = read(draft, path, FileRole.DATA, part)
    if file is None:
        if draft.format is Format.UNKNOWN:
            draft.format = Format.TORCH_FULL
        draft.part(part, draft.format, holds, 1)
        return None
    kind = format_of([file])
    form = Format.TORCH_FULL if kind is Format.TORCH_PER_RANK else kind
    draft.format = form if draft.format in (Format.UNKNOWN, Format.TORCH_FULL) else draft.format
    rank, world = saver(file)
    add_tensors(draft, file, part, rank, form is not Format.TORCH_FULL, world)
    draft.files[file.index].steps |= step_values(draft, file)
    note_steps(draft, file)
    draft.part(part, form, holds, 1, file.archive.version)
    if form is not Format.TORCH_FULL and draft.world is None:
        shown = path or "the file"
        known = f"{shown} was saved by one of {world} ranks" if world else f"{shown} is one rank's"
        draft.problem(
            ProblemKind.RANK_MISSING,
            Harm.DOUBT,
            f"{known}: give the folder with the files of all ranks",
            path,
            rank=rank,
        )
        source = WorldSource.PROCESS_GROUP if form is Format.SHARDED_PER_RANK else WorldSource.DEVICE_MESH
        draft.world = World(world, source if world else WorldSource.NONE, known)
    return file


def format_of(files: Iterable[TorchFile]) -> Format:
    """Which of the formats with a file per rank these are; `TORCH_PER_RANK` for plain tensors."""
    seen = {t.container for f in files for _, t in f.content.tensors}
    flat = any(p[-1].endswith("_flat_param") for f in files for p, _ in f.content.tensors if p)
    if flat:
        return Format.LOCAL_PER_RANK
    if Container.SHARDED in seen:
        return Format.SHARDED_PER_RANK
    return Format.DTENSOR_PER_RANK if Container.DTENSOR in seen else Format.TORCH_PER_RANK


def saver(file: TorchFile) -> tuple[int | None, int | None]:
    """Rank and world size that the file's own objects tell."""
    for _, tensor in file.content.tensors:
        if tensor.group:
            return tensor.group.get("global_rank"), tensor.group.get("global_world_size")
    for _, tensor in file.content.tensors:
        if tensor.mesh:
            size = 1
            for n in tensor.mesh:
                size *= n
            return None, size
    return None, None


def add_tensors(
    draft: Draft, file: TorchFile, part: str, rank: int | None, per_rank: bool, world: int | None
) -> None:
    """Add a file's tensors and values."""
    owners: dict[tuple[str, int], str] = {}
    starts = _starts(draft, file)
    for path, tensor in file.content.tensors:
        key = key_of(path)
        made = TensorDraft(key, path, tensor.shape, tensor.dtype, part, tensor.container)
        made.placements, made.mesh, made.mesh_names = tensor.placements, tensor.mesh, tensor.mesh_names
        made.requires_grad, made.is_parameter = tensor.requires_grad, tensor.is_parameter
        made.contiguous = all(p.contiguous for p in tensor.pieces)
        made.local = per_rank and tensor.container is Container.TENSOR
        known = draft.tensor(made)
        if known is not made and not made.local and (known.shape, known.dtype) != (made.shape, made.dtype):
            draft.problem(
                ProblemKind.DTYPE_CONFLICT,
                Harm.BROKEN,
                f"{file.path} holds {made.dtype} {list(made.shape)} where another rank's file holds "
                f"{known.dtype} {list(known.shape)}",
                file.path,
                (key,),
                rank=rank,
            )
            continue
        if rank is not None and tensor.pieces:
            known.local_shapes.append((rank, tensor.pieces[0].sizes))
        _chunks(known, file, tensor, rank, starts, world)
        if not per_rank:
            _shared(known, tensor, owners)
    _entries(draft, file, part, rank if per_rank else None)


def _shared(draft: TensorDraft, tensor: Pickled, owners: dict[tuple[str, int], str]) -> None:
    """Tied weights: the same bytes of one storage under two keys."""
    for piece in tensor.pieces[:1]:
        if piece.storage is not None and piece.storage.bytes:
            place = (piece.storage.key, piece.start)
            owner = owners.setdefault(place, draft.key)
            draft.view_of = owner if owner != draft.key else None


def _starts(draft: Draft, file: TorchFile) -> Mapping[str, int]:
    """First bytes of the storages: written in order, they follow from one header's length."""
    found: dict[str, int] = {}
    stored = {k: s for k in file.content.storages if (s := file.archive.storage(k)) is not None}
    if len(stored) > 4096:  # one read per storage is a second on a file server
        return {k: s.header for k, s in stored.items()}
    try:
        with draft.store.open(file.path) as opened:
            for key, entry in stored.items():
                at = data_offset(opened, entry)
                if at is not None:
                    found[key] = at
    except OSError:
        return {}
    return found


def _chunks(
    known: TensorDraft,
    file: TorchFile,
    tensor: Pickled,
    rank: int | None,
    starts: Mapping[str, int],
    world: int | None,
) -> None:
    for piece in tensor.pieces:
        place = _place(tensor, piece, rank, world)
        if place is None or len(place) != len(known.shape) or len(piece.sizes) != len(known.shape):
            continue
        if known.local:
            continue
        start = length = None
        if piece.storage is not None and piece.storage.key in starts:
            start = starts[piece.storage.key] + piece.start
            length = piece.storage.bytes
        known.add(place, piece.sizes, file.index, start, length, rank)


def _place(tensor: Pickled, piece: Piece, rank: int | None, world: int | None) -> tuple[int, ...] | None:
    if tensor.container is not Container.DTENSOR:
        return piece.offsets
    if rank is None:
        return None
    return local_place(tensor.shape, tensor.placements, tensor.mesh, rank, world, piece.sizes)


def _entries(draft: Draft, file: TorchFile, part: str, rank: int | None) -> None:
    known = {e.key: e for e in draft.entries if e.part == part} if rank else {}
    for entry in file.content.entries:
        entry.part, entry.file = part, file.index
        other = known.get(entry.key)
        if other is None:
            draft.entry(entry)
        elif (other.value, other.elements, other.type) != (entry.value, entry.elements, entry.type):
            other.differs = True


def note_steps(draft: Draft, file: TorchFile) -> None:
    """Steps and epochs that are kept as tensors of one element."""
    for path, tensor in file.content.tensors:
        if len(path) <= 2 and path[-1:] and path[-1] in ("step", "global_step", "iteration", "epoch"):
            value = file.value(draft, tensor)
            if value is not None and value == value and abs(value) < 1 << 53:
                draft.numbers[key_of(path)] = int(value)
