"""Any checkpoint as one tree: DCP, safetensors, torch.save files, whole or one per rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fsdp_doctor.ckpt.convert import torch_source
from fsdp_doctor.ckpt.convert.model import Archived, ConvertError, Path, Source, TensorLeaf, put
from fsdp_doctor.ckpt.dcp_records import Exact
from fsdp_doctor.ckpt.safe_pickle import PickleError, load
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.ckpt.stub import field as field_of
from fsdp_doctor.ckpt.stub import items_of, list_of
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, FileRole, Format, Kind, Layout, Tensor
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

ARCHIVES = (Format.DCP, Format.DCP_PER_RANK)
HEADERS = (Format.SAFETENSORS, Format.DCP_SAFETENSORS)
PER_RANK = (Format.SHARDED_PER_RANK, Format.DTENSOR_PER_RANK, Format.TORCH_PER_RANK)
HARMLESS = (ProblemKind.FILE_STALE, ProblemKind.FILE_NEWER, ProblemKind.FILE_SPREAD)


def tree_of(index: CheckpointIndex, store: Store) -> dict[object, object]:
    """The tree of a checkpoint. Raises `ConvertError` for one that is not whole, or of another kind."""
    refuse(index)
    if index.format in ARCHIVES:
        return _dcp(index, store)
    if index.format in HEADERS:
        return {t.key: _leaf(t, index) for t in index.tensors}
    if index.format is Format.TORCH_FULL or index.format in PER_RANK:
        return _files(index, store)
    raise ConvertError(f"{index.format.value} is not converted by this command")


REFUSED: Mapping[Format, str] = {
    Format.LOCAL_PER_RANK: "flat parameters of FSDP1's LOCAL_STATE_DICT: which parameters they hold is not "
    "stored. Load it with the wrapping that saved it, and save it again with get_state_dict and dcp.save",
    Format.ZERO: "a checkpoint of DeepSpeed ZeRO: use its own zero_to_fp32.py",
    Format.ZERO_UNIVERSAL: "a universal checkpoint of DeepSpeed: load it with DeepSpeed",
    Format.TORCH_LEGACY: "a torch.save file of before torch 1.6: load it with torch and save it again",
    Format.UNKNOWN: "no checkpoint that can be read",
}


def refuse(index: CheckpointIndex) -> None:
    """Raise `ConvertError` for what cannot be converted exactly."""
    harmful = [p for p in index.problems if p.harm in (Harm.BROKEN, Harm.UNSAFE) and p.kind not in HARMLESS]
    if index.format in REFUSED:
        why = harmful[0].detail if harmful and index.format is Format.UNKNOWN else REFUSED[index.format]
        raise ConvertError(why)
    if index.flat_parameters:
        raise ConvertError(REFUSED[Format.LOCAL_PER_RANK])
    if index.layout is Layout.MEGATRON:
        raise ConvertError("a distributed checkpoint of Megatron: export it with Megatron's own tools")
    if harmful:
        more = f" (and {len(harmful) - 1} more: see `ckpt inspect`)" if len(harmful) > 1 else ""
        raise ConvertError(f"it is not whole: {harmful[0].detail}{more}")
    if index.truncated:
        raise ConvertError(f"it was not read wholly: {index.truncated[0]}")


def _leaf(tensor: Tensor, index: CheckpointIndex) -> TensorLeaf:
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], Source] = {}
    for chunk in tensor.chunks:
        if chunk.file is None or chunk.start is None or chunk.length is None:
            raise ConvertError(f"{tensor.key[:100]!a}: nothing tells where a part of it lies")
        file, archive = index.files[chunk.file].path, index.format in ARCHIVES
        seen.setdefault(
            (chunk.offsets, chunk.sizes),
            Source(chunk.offsets, chunk.sizes, file, chunk.start, chunk.length, archive),
        )
    kept = tuple(seen.values())
    return TensorLeaf(tensor.dtype, tensor.shape, kept, bool(tensor.requires_grad))


def _dcp(index: CheckpointIndex, store: Store) -> dict[object, object]:
    if index.dcp is not None and index.dcp.transformed:
        raise ConvertError("its items went through a compressor or another extension of DCP's writer")
    made: dict[object, object] = {}
    paths = {part.path: dict(_paths(index, store, part.path)) for part in index.parts}
    order = {key: at for held in paths.values() for at, key in enumerate(held)}
    places: list[tuple[str, str, object]] = [(t.key, t.part, _leaf(t, index)) for t in index.tensors]
    for entry in index.entries:
        if entry.part not in paths or entry.file is None or index.files[entry.file].role is not FileRole.DATA:
            continue
        if entry.start is None or entry.length is None:
            raise ConvertError(f"{entry.key[:100]!a}: nothing tells where its value lies")
        found = Archived(index.files[entry.file].path, entry.start, entry.length)
        places.append((entry.key, entry.part, found))
    places.sort(key=lambda p: order.get(p[0], len(order)))
    for key, part, value in places:
        put(made, paths.get(part, {}).get(key, (key,)), value)
    return made


def _paths(index: CheckpointIndex, store: Store, folder: str) -> Iterator[tuple[str, Path]]:
    """Flat key -> path into the saved dictionary, of all metadata files of a folder."""
    names = [f.path for f in index.files if f.role is FileRole.METADATA and f.path.endswith(".metadata")]
    for name in names:
        if name.rpartition("/")[0] != folder:
            continue
        try:
            node = store.again(name)
            with store.open(name) as file:
                top = load(file, node.size or 0, made=Exact().classes).value
        except (OSError, PickleError) as error:
            raise ConvertError(f"{name}: {error}") from None
        planner = items_of(field_of(top, "planner_data"))
        if not planner and index.tensors:
            raise ConvertError(f"{name} does not tell how its keys nest (no planner data)")
        for key, value in planner.items():
            steps = list_of(value)
            if isinstance(key, str) and steps and all(type(s) in (str, int) for s in steps):
                yield key, tuple(s for s in steps if isinstance(s, (str, int)))


def _files(index: CheckpointIndex, store: Store) -> dict[object, object]:
    """One tree of one or several sets of torch.save files."""
    data = [f for f in index.files if f.role is FileRole.DATA and f.referenced]
    if index.format is Format.TORCH_FULL:
        trees = [(f.path, f.part, torch_source.whole_file(store, f.path)) for f in data]
    else:
        sets: dict[tuple[str, str], dict[int, str]] = {}
        for file in data:
            if file.rank is None:
                raise ConvertError(f"{file.path[:200]!a}: of which rank it is cannot be told from its name")
            sets.setdefault((file.part, _kind(file.path, file.rank)), {})[file.rank] = file.path
        world = index.world.size or 1 + max(f.rank or 0 for f in data)
        trees = []
        for (part, name), ranks in sets.items():
            missing = sorted(set(range(world)) - set(ranks))
            if missing:
                raise ConvertError(f"{name}: the files of ranks {missing[:6]} of {world} are missing")
            trees.append((name, part, torch_source.rank_files(store, ranks, world)))
    holds = {part.path: part.holds for part in index.parts}
    return _merged(trees, holds)


def _kind(path: str, rank: int) -> str:
    """The name without its last mention of the rank."""
    before, mark, after = path.rpartition(str(rank))
    return f"{before}*{after}" if mark else path


def _merged(trees: list[tuple[str, str, object]], holds: Mapping[str, Kind]) -> dict[object, object]:
    """Several files' trees as one: model and optimizer get a key each, files of one model are joined."""
    boxes = [(n, p, t) for n, p, t in trees if isinstance(t, dict)]
    if len(boxes) != len(trees):
        raise ConvertError("a file holds no dictionary, but one bare value")
    if len(boxes) == 1:
        return boxes[0][2]
    made: dict[object, object] = {}
    kinds = {n: _holds(n, p, t, holds) for n, p, t in boxes}
    if set(kinds.values()) == {Kind.MODEL}:
        for _, _, box in boxes:
            made.update(box)
        return made
    for name, _, box in boxes:
        key = {Kind.MODEL: "model", Kind.OPTIMIZER: "optim"}.get(kinds[name], "")
        if not key:
            made.update(box)
            continue
        inner = next(iter(box.values())) if list(box) in (["model"], ["optimizer"], ["optim"]) else box
        known = made.setdefault(key, {})
        assert isinstance(known, dict) and isinstance(inner, dict)
        known.update(inner)
    return made


def _holds(name: str, part: str, box: dict[object, object], holds: Mapping[str, Kind]) -> Kind:
    if "state" in box and "param_groups" in box:
        return Kind.OPTIMIZER
    if name.rsplit("/", 1)[-1].startswith(("optim", "optimizer")):
        return Kind.OPTIMIZER
    return holds.get(part, Kind.MODEL) if len(holds) > 1 else Kind.MODEL
