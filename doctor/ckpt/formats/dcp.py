"""torch.distributed.checkpoint: `.metadata` and `__R_N.distcp`, also as other frameworks arrange them."""

from __future__ import annotations

import operator
import re
from array import array
from collections.abc import Iterable

from fsdp_doctor.ckpt import dcp_metadata
from fsdp_doctor.ckpt.dcp_items import read_items
from fsdp_doctor.ckpt.dcp_judge import judge_files
from fsdp_doctor.ckpt.dcp_whole import judge_tensors
from fsdp_doctor.ckpt.draft import Draft, EntryDraft, TensorDraft
from fsdp_doctor.ckpt.limits import RECENT_SECONDS
from fsdp_doctor.ckpt.safe_pickle import PickleError
from fsdp_doctor.ckpt.store import Node
from fsdp_doctor.subjects.checkpoint import DcpFacts, FileRole, Format, Kind
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

DATA = re.compile(r"__(\d{1,9})_(\d{1,9})\.distcp")
RANK_METADATA = re.compile(r"__(\d{1,9})\.metadata")
TEMPORARY = re.compile(r"(\.metadata|__\d{1,9}\.metadata)\.tmp")
SAFE_NAME = re.compile(r"[A-Za-z0-9_.=@+-]{1,255}")


def in_folder(names: Iterable[str]) -> bool:
    """Whether these names are those of a DCP folder, whole or not."""
    return any(n == ".metadata" or DATA.fullmatch(n) or RANK_METADATA.fullmatch(n) for n in names)


def read(draft: Draft, folder: str = "", holds: Kind = Kind.MODEL) -> None:
    """Add the DCP store of a folder."""
    names = {n.name: n for n in draft.below(folder)}
    metadata = [n for n in names if n == ".metadata"]
    per_rank = sorted((n for n in names if RANK_METADATA.fullmatch(n)), key=_rank)
    draft.format = Format.DCP if metadata or not per_rank else Format.DCP_PER_RANK
    _note_data(draft, folder, names)
    if not metadata and not per_rank:
        _unfinished(draft, folder, names)
        return
    found: list[tuple[str, int | None, dcp_metadata.Metadata]] = []
    for name in metadata or per_rank:
        read_one = _read_metadata(draft, _join(folder, name))
        if read_one is not None:
            found.append((name, None if metadata else _rank(name), read_one))
    if not found:
        draft.part(folder, draft.format, holds, len(names))
        return
    for _, rank, meta in found:
        _add(draft, folder, meta, rank)
    foreign = judge_files(draft, folder, [m for _, _, m in found])
    judge_tensors(draft, folder)
    first = found[0][2]
    draft.part(folder, draft.format, holds, len(names), first.version)
    stamps = [n.modified for name in (metadata or per_rank) if (n := names[name]).modified is not None]
    previous = draft.dcp
    draft.dcp = DcpFacts(
        version=first.version,
        saved_to=first.saved_to,
        save_id=first.save_id,
        has_planner_data=first.planner is not None,
        transformed=any(m.transformed for _, _, m in found),
        metadata_files=(
            *(previous.metadata_files if previous else ()),
            *(_join(folder, n) for n, _, _ in found),
        ),
        modified=max((s for s in stamps if s is not None), default=None),
        complete=True if previous is None else previous.complete,
    )
    if draft.read_values and not draft.dcp.transformed:
        read_items(draft, folder, foreign)


def _rank(name: str) -> int:
    found = RANK_METADATA.fullmatch(name)
    return int(found[1]) if found else 0


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _note_data(draft: Draft, folder: str, names: dict[str, Node]) -> None:
    for name, node in names.items():
        data = DATA.fullmatch(name)
        if data:
            file = draft.files[draft.file(node.path, FileRole.DATA, folder)]
            file.rank = int(data[1])
        elif name == ".metadata" or RANK_METADATA.fullmatch(name):
            file = draft.files[draft.file(node.path, FileRole.METADATA, folder)]
            file.referenced = True
            file.rank = _rank(name) if name != ".metadata" else None
        elif TEMPORARY.fullmatch(name):
            draft.file(node.path, FileRole.METADATA, folder)


def _unfinished(draft: Draft, folder: str, names: dict[str, Node]) -> None:
    """Data without metadata: DCP writes metadata last, and renames it into place."""
    temporary = sorted(n for n in names if TEMPORARY.fullmatch(n))
    data = [n for n in names.values() if DATA.fullmatch(n.name)]
    newest = max((n.modified for n in names.values() if n.modified is not None), default=0.0)
    recent = newest > draft.now - RECENT_SECONDS
    there = f"{len(data)} data file{'' if len(data) == 1 else 's'}"
    half = f", and {temporary[0]}, which was never renamed" if temporary else ""
    running = "; it changed within the last minutes, so that it may still be running" if recent else ""
    draft.problem(
        ProblemKind.UNFINISHED,
        Harm.BROKEN,
        f"the save did not finish: no .metadata beside {there}{half}{running}",
        _join(folder, temporary[0] if temporary else ".metadata"),
        bytes=sum(n.size or 0 for n in data),
    )
    draft.dcp = DcpFacts(complete=False, in_progress=recent)
    draft.part(folder, draft.format, Kind.MODEL, len(names))


def _read_metadata(draft: Draft, path: str) -> dcp_metadata.Metadata | None:
    node = draft.nodes[path]
    if not node.regular or node.size is None:
        return None
    if not node.size:
        draft.problem(
            ProblemKind.METADATA_DAMAGED, Harm.BROKEN, f"{path} is empty: torch says `metadata is None`", path
        )
        return None
    try:
        with draft.store.open(path) as file:
            found = dcp_metadata.read(file, node.size)
    except PickleError as error:
        draft.names(error.names, path)
        strange = str(error).startswith("it holds")
        kind = ProblemKind.METADATA_STRANGE if strange else ProblemKind.METADATA_DAMAGED
        kind = ProblemKind.MEMORY if error.memory else kind
        draft.problem(kind, Harm.BROKEN, f"{path} ({node.size} bytes) cannot be read: {error}", path)
        return None
    except OSError as error:
        draft.problem(
            ProblemKind.FILE_FORBIDDEN, Harm.BROKEN, f"{path} cannot be read: {error.strerror or error}", path
        )
        return None
    draft.names(found.names, path)
    if found.unknown_items:
        draft.problem(
            ProblemKind.METADATA_STRANGE,
            Harm.DOUBT,
            f"{path} names {found.unknown_items} places for tensors or chunks that it does not describe",
            path,
        )
    return found


def _add(draft: Draft, folder: str, meta: dcp_metadata.Metadata, rank: int | None) -> None:
    """Add tensors and values of one metadata file."""
    files = [_data_file(draft, folder, path) for path in meta.paths]
    for at, (starts, lengths) in enumerate(zip(meta.starts, meta.lengths, strict=True)):
        index = files[at]
        if index is None:
            continue
        file = draft.files[index]
        file.referenced = True
        file.items += len(starts)
        if not meta.transformed or lengths:
            ends = max(map(operator.add, starts, lengths), default=0)
            file.needed = max(file.needed or 0, ends)
    planner = meta.planner or {}
    writers = [None if i is None else draft.files[i].rank for i in files]
    for key, tensor in meta.tensors.items():
        path = planner.get(key) or (key,)
        made = TensorDraft(key, path, tensor.shape, tensor.dtype, folder)
        made.requires_grad = tensor.requires_grad
        known = draft.tensor(made)
        if known.shape != tensor.shape or known.dtype != tensor.dtype:
            draft.problem(
                ProblemKind.DTYPE_CONFLICT,
                Harm.BROKEN,
                f"metadata of rank {rank} says {tensor.dtype} {list(tensor.shape)}, another rank's says "
                f"{known.dtype} {list(known.shape)}",
                tensors=(key,),
            )
            continue
        _rename_files(tensor, files, writers)
        if known.place:
            _union(known, tensor)
        else:
            known.place = tensor.rows
        if tensor.malformed:
            draft.problem(
                ProblemKind.METADATA_STRANGE,
                Harm.BROKEN,
                f"{tensor.malformed} chunks of a tensor have another number of dimensions than it",
                tensors=(key,),
            )
    seen = {e.key: e for e in draft.entries if e.part == folder}
    for key in meta.blobs:
        place = meta.blob_places.get(key)
        index = None if place is None else files[place[0]]
        if key in seen:
            continue  # every rank's metadata names the values that it wrote itself
        draft.entry(
            EntryDraft(
                key,
                planner.get(key) or (key,),
                part=folder,
                file=index,
                start=None if place is None else place[1],
                length=None if place is None else place[2],
            )
        )


def _rename_files(
    tensor: dcp_metadata.MetaTensor, files: list[int | None], writers: list[int | None]
) -> None:
    """From positions in the metadata's list to positions in the draft's, and the writers' ranks."""
    dims = 2 * len(tensor.shape)
    width = dims + 4
    rows = tensor.rows
    owners = rows[dims::width]
    known = [-1 if f is None else f for f in files]
    ranks = [-1 if r is None else r for r in writers]
    rows[dims::width] = array("q", [known[f] if f >= 0 else -1 for f in owners])
    rows[dims + 3 :: width] = array("q", [ranks[f] if f >= 0 else -1 for f in owners])


def _union(known: TensorDraft, tensor: dcp_metadata.MetaTensor) -> None:
    """Chunks of another rank's metadata; replicas are named once."""
    dims = 2 * len(known.shape)
    width = dims + 4
    have = {tuple(known.place[i : i + dims]) for i in range(0, len(known.place), width)}
    for i in range(0, len(tensor.rows), width):
        if tuple(tensor.rows[i : i + dims]) not in have:
            known.place.extend(tensor.rows[i : i + width])


def _data_file(draft: Draft, folder: str, path: str) -> int | None:
    """The file of a place; None, and a problem, for a name that leads elsewhere. It is then never opened."""
    if not SAFE_NAME.fullmatch(path) or path in (".", ".."):
        detail = f"metadata names the data file {path[:200]!a}; torch would open it, this tool does not"
        if not any(p.kind is ProblemKind.NAME_UNSAFE and p.detail == detail for p in draft.problems):
            draft.problem(ProblemKind.NAME_UNSAFE, Harm.UNSAFE, detail, _join(folder, ".metadata"))
        return None
    index = draft.file(_join(folder, path), FileRole.DATA, folder)
    data = DATA.fullmatch(path)
    if data:
        draft.files[index].rank = int(data[1])
    return index
