"""torch.save files as trees: one that holds everything, or one per rank joined to whole tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from fsdp_doctor.ckpt import torch_zip
from fsdp_doctor.ckpt.convert.model import ConvertError, Opaque, Ordered, Source, TensorLeaf
from fsdp_doctor.ckpt.convert.values import Tree
from fsdp_doctor.ckpt.parting import local_place
from fsdp_doctor.ckpt.pickled_tensor import Pickled, Piece, pickled_tensor
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.ckpt.stub import Stub, last_name, name_of
from fsdp_doctor.subjects.checkpoint import Container
from fsdp_doctor.tables.torch_dtypes import item_bytes


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor of one rank's file, before the ranks are joined."""

    tensor: Pickled
    sources: tuple[Source | None, ...]
    """As `Pickled.pieces`; None where the place in the whole is not known."""


def whole_file(store: Store, path: str) -> object:
    """The tree of a file of whole tensors. Raises `ConvertError`."""
    return _joined({0: _File(store, path, None, 1).tree})


def rank_files(store: Store, paths: Mapping[int, str], world: int) -> object:
    """The tree of files of all ranks: their shards joined. Raises `ConvertError`."""
    return _joined({rank: _File(store, path, rank, world).tree for rank, path in sorted(paths.items())})


class _File:
    """One file's tree, with `Local` leaves."""

    def __init__(self, store: Store, path: str, rank: int | None, world: int) -> None:
        self._path, self._rank, self._world = path, rank, world
        shown = path or store.root.rstrip("/").rsplit("/", 1)[-1]
        try:
            node = store.again(path)
            with store.open(path) as file:
                self._archive, loaded = torch_zip.read(file, node.size or 0)
                self._starts = {
                    k: torch_zip.data_offset(file, s)
                    for k, s in self._archive.entries.items()
                    if k.startswith("data/")
                }
        except (OSError, torch_zip.ZipError) as error:
            raise ConvertError(f"{shown}: {getattr(error, 'strerror', None) or error}") from None
        if self._archive.byteorder == "big":
            raise ConvertError(f"{shown}: written on a big-endian machine")
        self.tree = Tree(self._leaf).of(loaded.value)

    def _leaf(self, value: Stub) -> object:
        kind = next((last_name(a) for a in value.args[1:2]), "")
        if last_name(value) in (
            "_rebuild_sparse_tensor",
            "_rebuild_qtensor",
            "_rebuild_meta_tensor_no_storage",
        ):
            return Opaque(name_of(value))
        tensor = pickled_tensor(value)
        if tensor is None:
            return None
        known = ("Tensor", "Parameter", "Buffer", "DTensor", "ShardedTensor")
        if last_name(value) == "_rebuild_from_type_v2" and kind not in known:
            return Opaque(f"a tensor of class {kind}")
        return Local(tensor, tuple(self._source(tensor, p) for p in tensor.pieces))

    def _source(self, tensor: Pickled, piece: Piece) -> Source | None:
        offsets: tuple[int, ...] | None = piece.offsets
        if tensor.container is Container.DTENSOR:
            rank = self._rank
            if rank is None:
                raise ConvertError("one rank's file of DTensors: give the folder with the files of all ranks")
            offsets = local_place(
                tensor.shape, tensor.placements, tensor.mesh, rank, self._world, piece.sizes
            )
        size = prod(piece.sizes) * (item_bytes(tensor.dtype) or 1)
        stored = None if piece.storage is None else self._archive.storage(piece.storage.key)
        start = None if piece.storage is None else self._starts.get(f"data/{piece.storage.key}")
        if offsets is None:
            return None
        if stored is None or start is None or stored.size < piece.start + size:
            raise ConvertError(f"{self._path}: a storage is missing or too short")
        if not piece.contiguous:
            raise ConvertError(
                f"{self._path}: a tensor of shape {list(piece.sizes)} is stored transposed or strided: "
                "save it with .contiguous()"
            )
        crc = stored.crc if stored.size == size and stored.crc else None
        return Source(offsets, piece.sizes, self._path, start + piece.start, size, False, crc)


def _joined(trees: Mapping[int, object]) -> object:
    return _join((), trees)


def _join(path: tuple[object, ...], found: Mapping[int, object]) -> object:
    """One value of the values that the ranks' files hold at the same place."""
    first = next(iter(found.values()))
    key = ".".join(map(str, path))
    if isinstance(first, Local):
        locals_ = {r: v for r, v in found.items() if isinstance(v, Local)}
        if len(locals_) != len(found):
            raise _differs(key)
        return _tensor(key, locals_)
    if any(type(v) is not type(first) for v in found.values()):
        raise _differs(key)
    if isinstance(first, dict):
        made: dict[object, object] = Ordered() if isinstance(first, Ordered) else {}
        names = list(dict.fromkeys(k for v in found.values() if isinstance(v, dict) for k in v))
        for name in names:
            held = {r: v[name] for r, v in found.items() if isinstance(v, dict) and name in v}
            if len(held) < len(found) and not all(
                isinstance(v, Local) and v.tensor.places for v in held.values()
            ):
                made[name] = Opaque(f"what {len(held)} of {len(found)} ranks alone have")
                continue
            made[name] = _join((*path, name), held)
        return made
    if isinstance(first, (list, tuple)):
        lists = [v for v in found.values() if isinstance(v, (list, tuple))]
        if len({len(v) for v in lists}) != 1:
            raise _differs(key)
        parts = [_join((*path, i), dict(enumerate(v[i] for v in lists))) for i in range(len(lists[0]))]
        return parts if isinstance(first, list) else tuple(parts)
    if any(v != first for v in found.values()) and not isinstance(first, Opaque):
        return Opaque(f"values that differ by rank ({len(found)} ranks)")
    return first


def _differs(key: str) -> ConvertError:
    return ConvertError(f"{key[:100]!a}: the files of the ranks hold different kinds of values")


def _tensor(key: str, found: Mapping[int, Local]) -> object:
    first = next(iter(found.values())).tensor
    if any((v.tensor.dtype, v.tensor.container) != (first.dtype, first.container) for v in found.values()):
        raise ConvertError(f"{key[:100]!a}: the ranks' files disagree about dtype or class")
    if first.container is Container.TENSOR and len(found) > 1:
        return _replicated(key, found)
    if any(v.tensor.shape != first.shape for v in found.values()):
        raise ConvertError(f"{key[:100]!a}: the ranks' files disagree about the shape")
    if any(p.startswith("Partial") for p in first.placements):
        raise ConvertError(f"{key[:100]!a} is a Partial DTensor: its ranks' values have yet to be added")
    sources: dict[tuple[tuple[int, ...], tuple[int, ...]], Source] = {}
    for local in found.values():
        for source in local.sources:
            if source is None:
                raise ConvertError(
                    f"{key[:100]!a} has placements {', '.join(first.placements)[:80]}, of which the files do "
                    "not tell where a rank's part lies: save it with dcp.save"
                )
            sources.setdefault((source.offsets, source.sizes), source)
    kept = tuple(s for s in sources.values() if prod(s.sizes)) or tuple(sources.values())[:1]
    return TensorLeaf(first.dtype, first.shape, kept, bool(first.requires_grad))


def _replicated(key: str, found: Mapping[int, Local]) -> object:
    """Plain tensors in files per rank: whole ones are equal on all ranks."""
    made = [_tensor(key, {0: local}) for local in found.values()]
    whole = [m for m in made if isinstance(m, TensorLeaf)]
    sums = {(m.shape, m.dtype, m.sources[0].crc if m.sources else 0) for m in whole}
    if len(sums) == 1 and (
        not whole[0].sources or whole[0].sources[0].crc is not None or not prod(whole[0].shape)
    ):
        return whole[0]
    if len({s[0] for s in sums}) > 1 or len(sums) > 1:
        return Opaque(
            f"plain tensors that differ by rank ({len(found)} ranks): slices whose place nothing tells"
        )
    return Opaque("plain tensors without checksums, of which it cannot be told whether the ranks agree")
