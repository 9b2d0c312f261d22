"""torch.save files: one that holds everything, or one per rank: ShardedTensors, DTensors or flat slices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fsdp_doctor.ckpt.draft import Draft, EntryDraft, TensorDraft, counted
from fsdp_doctor.ckpt.limits import RANK_FILES
from fsdp_doctor.ckpt.parting import local_place
from fsdp_doctor.ckpt.pickled_tensor import Pickled, Piece
from fsdp_doctor.ckpt.rank_names import RankSet
from fsdp_doctor.ckpt.torch_content import key_of
from fsdp_doctor.ckpt.torch_file import TorchFile, read, step_values
from fsdp_doctor.ckpt.torch_zip import data_offset
from fsdp_doctor.subjects.checkpoint import Container, FileRole, Format, Kind, World, WorldSource
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind


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
    rank, world = _group(file)
    _add(draft, file, part, rank, form is not Format.TORCH_FULL, world)
    draft.files[file.index].steps |= step_values(draft, file)
    _note_steps(draft, file)
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


def read_ranks(draft: Draft, ranks: RankSet, holds: Kind = Kind.MODEL, part: str = "") -> list[TorchFile]:
    """A set with one file per rank."""
    files: list[TorchFile] = []
    worlds: dict[int, list[int]] = {}
    owners: dict[int, str] = {}
    pairs = sorted(ranks.ranks.items())
    if len(pairs) > RANK_FILES:
        draft.cut(f"{len(pairs) - RANK_FILES} files of ranks were not opened")
        pairs = pairs[:RANK_FILES]
    contents: list[tuple[int, TorchFile]] = []
    for rank, path in pairs:
        draft.files[draft.file(path, FileRole.DATA, part)].rank = rank
        file = read(draft, path, FileRole.DATA, part)
        if file is None:
            continue
        contents.append((rank, file))
        files.append(file)
        own, world = _group(file)
        if own is not None and own in owners:
            draft.problem(
                ProblemKind.FILE_FOREIGN,
                Harm.BROKEN,
                f"{owners[own]} and {path} were both saved by rank {own}: one is a copy, which torch.load "
                f'refuses elsewhere ("Local rank at save time was {own}")',
                path,
                rank=rank,
            )
        elif own is not None:
            owners[own] = path
        if world:
            worlds.setdefault(world, []).append(rank)
    form = format_of(files)
    draft.format = form
    count = max(worlds, key=lambda w: len(worlds[w])) if worlds else None
    for rank, file in contents:
        _add(draft, file, part, rank, True, count or ranks.world or max(ranks.ranks) + 1)
        draft.files[file.index].steps |= step_values(draft, file)
        _note_steps(draft, file)
    _agree(draft, part, contents, worlds)
    draft.part(part, form, holds, len(pairs), contents[0][1].archive.version if contents else None)
    _world(draft, ranks, worlds, form)
    return files


def format_of(files: Iterable[TorchFile]) -> Format:
    """Which of the formats with a file per rank these are; `TORCH_PER_RANK` for plain tensors."""
    seen = {t.container for f in files for _, t in f.content.tensors}
    flat = any(p[-1].endswith("_flat_param") for f in files for p, _ in f.content.tensors if p)
    if flat:
        return Format.LOCAL_PER_RANK
    if Container.SHARDED in seen:
        return Format.SHARDED_PER_RANK
    return Format.DTENSOR_PER_RANK if Container.DTENSOR in seen else Format.TORCH_PER_RANK


def _group(file: TorchFile) -> tuple[int | None, int | None]:
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


def _add(
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


def _note_steps(draft: Draft, file: TorchFile) -> None:
    """Steps and epochs that are kept as tensors of one element."""
    for path, tensor in file.content.tensors:
        if len(path) <= 2 and path[-1:] and path[-1] in ("step", "global_step", "iteration", "epoch"):
            value = file.value(draft, tensor)
            if value is not None and value == value and abs(value) < 1 << 53:
                draft.numbers[key_of(path)] = int(value)


def _agree(
    draft: Draft, part: str, contents: list[tuple[int, TorchFile]], worlds: Mapping[int, list[int]]
) -> None:
    """Files of one save hold the same keys and name one world size."""
    if len(worlds) > 1:
        words = "; ".join(f"{w}: ranks {_few(r)}" for w, r in sorted(worlds.items()))
        draft.problem(
            ProblemKind.RANKS_MIXED,
            Harm.BROKEN,
            f"files of ranks were saved by different world sizes ({words})",
            part,
        )
    if len(contents) < 2:
        return
    # Plain tensors may differ: under FSDP1 a rank without a part of a parameter keeps no state for it.
    keys = [
        frozenset(p for p, t in f.content.tensors if t.container is not Container.TENSOR) for _, f in contents
    ]
    common = keys[0].intersection(*keys[1:])
    for (rank, file), own in zip(contents, keys, strict=True):
        extra = own - common
        if extra:
            draft.problem(
                ProblemKind.RANKS_MIXED,
                Harm.DOUBT,
                f"{file.path} holds {counted(extra)} that not all ranks' files hold",
                file.path,
                sorted(key_of(p) for p in extra),
                rank=rank,
            )
            return


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:6])) + (" …" if len(ranks) > 6 else "")


def _world(draft: Draft, ranks: RankSet, worlds: Mapping[int, list[int]], form: Format) -> None:
    said = max(worlds, key=lambda w: len(worlds[w])) if worlds else None
    if form is Format.SHARDED_PER_RANK or (form is Format.LOCAL_PER_RANK and said):
        source = WorldSource.PROCESS_GROUP
    else:
        source = WorldSource.DEVICE_MESH
    count = max(ranks.ranks) + 1
    size, detail = count, f"highest rank {count - 1} in {ranks.template}"
    where = WorldSource.RANK_FILES
    if ranks.world:
        size, where, detail = (
            ranks.world,
            WorldSource.FILE_NAMES,
            f"{ranks.world} in the names {ranks.template}",
        )
    elif said and said >= count:
        size, where, detail = said, source, f"{said} ranks in the {source.value} of the files"
    missing = tuple(r for r in range(min(size, 1 << 20)) if r not in ranks.ranks)
    if missing:
        draft.problem(
            ProblemKind.RANK_MISSING,
            Harm.BROKEN,
            f"{len(missing)} of {size} ranks' files {ranks.template} are missing: rank {_few(list(missing))}",
            ranks.template.replace("*", str(missing[0])),
            rank=missing[0],
        )
    certain = said is None or said == size or (form is Format.DTENSOR_PER_RANK and size % said == 0)
    present = tuple(sorted(ranks.ranks))
    before = draft.world
    if before is None or (before.size or 0) < size:
        draft.world = World(size, where, detail, certain, None, present, present)


def add_values(draft: Draft, path: str, role_rank: int | None = None, part: str = "") -> None:
    """A file of values that are no weights: RNG states, schedulers. Tensors in it are state, too."""
    file = read(draft, path, FileRole.STATE, part)
    if file is None:
        return
    draft.files[file.index].rank = role_rank
    name = path.rsplit("/", 1)[-1]
    for entry in file.content.entries:
        entry.key, entry.path = f"{name}:{entry.key}", (name, *entry.path)
        entry.part, entry.file, entry.rank = part, file.index, role_rank
        draft.entry(entry)
    for path_of, tensor in file.content.tensors:
        draft.entry(
            EntryDraft(
                f"{name}:{key_of(path_of)}",
                (name, *path_of),
                type=f"{tensor.dtype} {list(tensor.shape)}",
                rank=role_rank,
                part=part,
                file=file.index,
            )
        )
