"""Tensors as torch pickles them: dtype, shape, place in a storage, and of which whole they are a part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from fsdp_doctor.ckpt.safe_pickle import PERSISTENT
from fsdp_doctor.ckpt.stub import Stub, items_of, last_name, list_of, name_of, numbers
from fsdp_doctor.ckpt.stub import field as field_of
from fsdp_doctor.subjects.checkpoint import Container
from fsdp_doctor.tables.torch_dtypes import ALIASES, STORAGES, item_bytes

REBUILDERS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_tensor", "_rebuild_qtensor")
PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage of a torch.save file."""

    key: str
    bytes: int
    """What dtype and count of the pickle make."""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor that this file holds."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    storage: Storage | None
    start: int = 0
    """First byte in the storage."""
    contiguous: bool = True


@dataclass(frozen=True, slots=True)
class Pickled:
    """A tensor found in a pickle."""

    dtype: str
    shape: tuple[int, ...]
    container: Container = Container.TENSOR
    pieces: tuple[Piece, ...] = ()
    places: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Of a ShardedTensor: offsets and sizes of all ranks' shards."""
    placements: tuple[str, ...] = ()
    mesh: tuple[int, ...] = ()
    mesh_names: tuple[str, ...] = ()
    group: dict[str, int] = field(default_factory=dict)
    """Of a ShardedTensor: local_rank, global_rank, local_world_size, global_world_size."""
    requires_grad: bool | None = None
    is_parameter: bool = False


def pickled_tensor(value: object) -> Pickled | None:
    """The tensor that a value stands for; None for anything else, or one that contradicts itself."""
    if not isinstance(value, Stub):
        return None
    name = last_name(value)
    if name in PARAMETERS and value.args:
        inner = pickled_tensor(value.args[0])
        grad = value.args[1] if len(value.args) > 1 and isinstance(value.args[1], bool) else None
        return None if inner is None else _as_parameter(inner, grad)
    if name == "_rebuild_from_type_v2" and len(value.args) == 4:
        return _of_type(value.args)
    if name in REBUILDERS:
        return _plain(name, value.args)
    if name == "_rebuild_meta_tensor_no_storage" and len(value.args) >= 2:
        shape = numbers(value.args[1])
        return None if shape is None else Pickled(_dtype(value.args[0]), shape)
    if name == "_rebuild_sparse_tensor" and len(value.args) == 2:
        return _sparse(value.args[1])
    if name == "_rebuild_device_tensor_from_numpy" and len(value.args) >= 2:
        return None
    return None


def _as_parameter(inner: Pickled, grad: bool | None) -> Pickled:
    return replace(inner, is_parameter=True, requires_grad=grad if grad is not None else inner.requires_grad)


def _plain(name: str, args: tuple[object, ...]) -> Pickled | None:
    """(storage, offset, size, stride, requires_grad, hooks[, dtype]); _rebuild_qtensor adds a quantizer."""
    if len(args) < 4 or not isinstance(args[0], Stub) or name_of(args[0]) != PERSISTENT:
        return None
    shape, stride = numbers(args[2]), numbers(args[3])
    offset = args[1]
    found = storage_of(args[0])
    if shape is None or stride is None or found is None or type(offset) is not int or offset < 0:
        return None
    storage, dtype = found
    if name == "_rebuild_tensor_v3" and len(args) > 6:
        dtype = _dtype(args[6])
    grad = args[4] if len(args) > 4 and isinstance(args[4], bool) else None
    whole = _contiguous(shape, stride)
    piece = Piece((0,) * len(shape), shape, storage, offset * (item_bytes(dtype) or 1), whole)
    return Pickled(dtype, shape, pieces=(piece,), requires_grad=grad)


def storage_of(value: object) -> tuple[Storage, str] | None:
    """A storage and its dtype from a persistent id: ("storage", class, key, device, count)."""
    if not isinstance(value, Stub) or name_of(value) != PERSISTENT or len(value.args) < 5:
        return None
    mark, kind, key, device, count = value.args[:5]
    if mark != "storage" or not isinstance(key, str) or type(count) is not int or count < 0:
        return None
    dtype = STORAGES.get(last_name(kind), "")
    size = count * (item_bytes(dtype) or 1)
    return Storage(key, size, device if isinstance(device, str) else ""), dtype or "uint8"


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=False):
        if length > 1 and step != expected:
            return prod(shape) == 0
        expected *= length
    return True


def _sparse(data: object) -> Pickled | None:
    parts = data if isinstance(data, tuple) else ()
    shape = next((s for p in parts if (s := numbers(p)) is not None), None)
    inner = [t for p in parts if (t := pickled_tensor(p)) is not None]
    if shape is None or not inner:
        return None
    return Pickled(inner[-1].dtype, shape, pieces=tuple(p for t in inner for p in t.pieces))


def _of_type(args: tuple[object, ...]) -> Pickled | None:
    """(function, type, arguments, state): a subclass, or a tensor with attributes."""
    func, kind, inner, state = args
    if not isinstance(inner, tuple):
        return None
    if last_name(func) != "_rebuild_wrapper_subclass":
        return _rebuilt(func, inner)
    if len(inner) < 3 or (shape := numbers(inner[2])) is None:
        return None
    dtype, name = _dtype(inner[1]), last_name(kind)
    if name == "ShardedTensor":
        return _sharded(dtype, shape, state)
    return _dtensor(dtype, shape, state)


def _rebuilt(func: object, inner: tuple[object, ...]) -> Pickled | None:
    name = last_name(func)
    if name in REBUILDERS:
        return _plain(name, inner)
    if name in PARAMETERS and inner:
        found = pickled_tensor(inner[0])
        return None if found is None else _as_parameter(found, None)
    return None


def _dtype(value: object) -> str:
    name = last_name(value)
    return ALIASES.get(name, name) or "unknown"


def _states(state: object) -> Iterator[dict[object, object]]:
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield part


def _dtensor(dtype: str, shape: tuple[int, ...], state: object) -> Pickled:
    fields = next((p for p in _states(state) if "_local_tensor" in p), {})
    spec, local = fields.get("_spec"), pickled_tensor(fields.get("_local_tensor"))
    mesh, names = mesh_of(field_of(spec, "mesh"))
    placements = tuple(_placement(p) for p in list_of(field_of(spec, "placements")))
    pieces = () if local is None else local.pieces
    return Pickled(
        dtype,
        shape,
        Container.DTENSOR if fields else Container.TENSOR,
        pieces,
        placements=placements,
        mesh=mesh,
        mesh_names=names,
        requires_grad=None if local is None else local.requires_grad,
    )


def _placement(value: object) -> str:
    dim = field_of(value, "dim")
    if not isinstance(dim, int) and isinstance(value, Stub):
        dim = next((a for a in value.args if type(a) is int), None)
    return f"{last_name(value)[:40]}({dim if isinstance(dim, int) else ''})"


def mesh_of(mesh: object) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and dimension names of a DeviceMesh, as torch 2.3 to 2.13 pickle it."""
    layout = field_of(mesh, "_layout")
    shape: list[int] = []
    for axis in list_of(field_of(layout, "axes")):
        shape += numbers(field_of(axis, "shape")) or ()
    if not shape:
        shape = list(_flat(field_of(layout, "shape")))
    if not shape:
        for key in ("_mesh", "mesh"):
            tensor = pickled_tensor(field_of(mesh, key))
            if tensor is not None:
                shape = list(tensor.shape)
                break
    names = list_of(field_of(mesh, "_mesh_dim_names") or field_of(mesh, "mesh_dim_names"))
    return tuple(shape), tuple(n[:60] for n in names if isinstance(n, str))


def _flat(value: object) -> Iterator[int]:
    if type(value) is int and value >= 0:
        yield value
    elif isinstance(value, tuple) and len(value) <= 16:
        for part in value:
            if type(part) is int and part >= 0:
                yield part


def _sharded(dtype: str, shape: tuple[int, ...], state: object) -> Pickled:
    """State: (local shards, metadata, process group state, sharding spec, remote references)."""
    parts = state if isinstance(state, tuple) else ()
    pieces: list[Piece] = []
    places: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for shard in list_of(parts[0]) if parts else []:
        local = pickled_tensor(field_of(shard, "tensor"))
        meta = field_of(shard, "metadata")
        offsets, sizes = _shard_place(meta)
        if local is not None and local.pieces:
            inner = local.pieces[0]
            pieces.append(
                Piece(
                    offsets or inner.offsets,
                    sizes or inner.sizes,
                    inner.storage,
                    inner.start,
                    inner.contiguous,
                )
            )
    group: dict[str, int] = {}
    if len(parts) > 2:
        for meta in list_of(field_of(parts[1], "shards_metadata")):
            offsets, sizes = _shard_place(meta)
            if offsets is not None and sizes is not None:
                places.append((offsets, sizes))
        group = {k: v for k, v in _fields(parts[2]) if isinstance(k, str) and type(v) is int}
    return Pickled(dtype, shape, Container.SHARDED, tuple(pieces), tuple(places), group=group)


def _shard_place(meta: object) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    return (
        numbers(list_of(field_of(meta, "shard_offsets"))),
        numbers(list_of(field_of(meta, "shard_sizes"))),
    )


def _fields(value: object) -> Iterator[tuple[object, object]]:
    state = value.state if isinstance(value, Stub) else None
    for part in _states(state):
        yield from part.items()
    yield from items_of(value).items()
