"""A set of torch.save files, one per rank, and files of state beside them."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.ckpt.draft import Draft, EntryDraft, counted
from fsdp_doctor.ckpt.formats.torch_files import add_tensors, format_of, note_steps, saver
from fsdp_doctor.ckpt.limits import RANK_FILES
from fsdp_doctor.ckpt.rank_names import RankSet
from fsdp_doctor.ckpt.torch_content import key_of
from fsdp_doctor.ckpt.torch_file import TorchFile, read, step_values
from fsdp_doctor.subjects.checkpoint import Container, FileRole, Format, Kind
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource


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
        own, world = saver(file)
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
        add_tensors(draft, file, part, rank, True, count or ranks.world or max(ranks.ranks) + 1)
        draft.files[file.index].steps |= step_values(draft, file)
        note_steps(draft, file)
    _agree(draft, part, contents, worlds)
    draft.part(part, form, holds, len(pairs), contents[0][1].archive.version if contents else None)
    _world(draft, ranks, worlds, form)
    return files


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
