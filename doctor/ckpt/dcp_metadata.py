"""DCP's `.metadata`: which tensors there are, how they are parted and where the parts lie."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from fsdp_doctor.ckpt.dcp_columns import Columns, placed
from fsdp_doctor.ckpt.dcp_placing import place
from fsdp_doctor.ckpt.dcp_records import Exact, Irregular, Records
from fsdp_doctor.ckpt.safe_pickle import PickleError, load
from fsdp_doctor.ckpt.stub import Stub, items_of, last_name, list_of, name_of, numbers
from fsdp_doctor.ckpt.stub import field as field_of
from fsdp_doctor.tables.torch_dtypes import ALIASES

COMPACT_FROM = 4 << 20
"""Bytes of metadata from which on memory matters."""


@dataclass(slots=True)
class MetaTensor:
    """A tensor of the metadata. `rows` holds offsets, sizes, file, start, length and -1 per chunk."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    rows: array[int]
    requires_grad: bool | None = None
    malformed: int = 0
    """Chunks whose offsets or sizes have other dimensions than the tensor."""


@dataclass(slots=True)
class Metadata:
    """One metadata file, in plain values."""

    tensors: dict[str, MetaTensor] = field(default_factory=dict)
    blobs: list[str] = field(default_factory=list)
    blob_places: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Key -> file, start and length."""
    paths: list[str] = field(default_factory=list)
    """Files that places name, in the order in which they are first named."""
    starts: list[array[int]] = field(default_factory=list)
    lengths: list[array[int]] = field(default_factory=list)
    """Per file, the items in it."""
    planner: Mapping[str, tuple[str, ...]] | None = None
    """Key -> the components by which the saved dictionary nested."""
    version: str | None = None
    saved_to: str | None = None
    save_id: str | None = None
    transformed: bool = False
    unknown_items: int = 0
    """Places for tensors or chunks that the metadata does not describe."""
    extra: tuple[str, ...] = ()
    """Fields that torch's Metadata has not, such as Megatron's `all_local_plans`."""
    names: Mapping[str, int] = field(default_factory=dict)


FIELDS = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")


def read(file: BinaryIO, size: int) -> Metadata:
    """Read one metadata file. Raises `PickleError`, also where it holds something else."""
    if size >= COMPACT_FROM:
        try:
            return _read(file, size, Columns())
        except (Irregular, PickleError) as error:
            if isinstance(error, PickleError) and error.memory:
                raise
            file.seek(0)
    return _read(file, size, Exact())


def _read(file: BinaryIO, size: int, records: Records) -> Metadata:
    loaded = load(file, size, made=records.classes, between=records.between)
    top = loaded.value
    named = name_of(top)
    if not (
        isinstance(top, Stub) and named.startswith("torch.distributed.") and last_name(top) == "Metadata"
    ):
        what = named or type(top).__name__
        raise PickleError(f"it holds {what[:80]!r} where DCP's Metadata should be", loaded.names)
    found = Metadata(names=loaded.names)
    for key, item in items_of(field_of(top, "state_dict_metadata")).items():
        if isinstance(key, str):
            _describe(found, key, item, records)
    place(found, records.places(items_of(field_of(top, "storage_data"))))
    _rest(found, top)
    return found


def _describe(found: Metadata, key: str, item: object, records: Records) -> None:
    if not placed(item) and last_name(item) != "TensorStorageMetadata":
        found.blobs.append(key)
        return
    described = records.tensor(item)
    shape = numbers(described.size)
    if shape is None:
        found.unknown_items += 1
        return
    dtype, grad = _properties(described.properties)
    rows, malformed = described.rows(len(shape))
    found.tensors[key] = MetaTensor(key, shape, dtype, rows, grad, malformed)


def _properties(value: object) -> tuple[str, bool | None]:
    """Element type and requires_grad: the state is a tuple (torch >= 2.0) or a dictionary."""
    state = value.state if isinstance(value, Stub) else None
    grad = None
    if isinstance(state, tuple) and state and last_name(state[0]):
        grad = state[2] if len(state) > 2 and isinstance(state[2], bool) else None
        name = last_name(state[0])
    else:
        name = last_name(field_of(value, "dtype"))
        if not name and isinstance(value, Stub) and value.args:
            name = last_name(value.args[0])
    return ALIASES.get(name, name) or "unknown", grad


def _rest(found: Metadata, top: Stub) -> None:
    planner = field_of(top, "planner_data")
    if isinstance(planner, dict) or items_of(planner):
        found.planner = {k: p for k, v in items_of(planner).items() if isinstance(k, str) and (p := _path(v))}
    version = field_of(top, "version")
    found.version = version[:40] if isinstance(version, str) else None
    meta = field_of(top, "storage_meta")
    at = field_of(meta, "checkpoint_id")
    if isinstance(at, Stub):
        at = "/".join(p for p in at.args if isinstance(p, str)).replace("//", "/")
    found.saved_to = at[:4096] if isinstance(at, str) and at else None
    save = field_of(meta, "save_id")
    found.save_id = save[:200] if isinstance(save, str) else None
    state = top.state if isinstance(top.state, dict) else {}
    found.extra = tuple(sorted(k[:60] for k in state if isinstance(k, str) and k not in FIELDS))[:8]


def _path(value: object) -> tuple[str, ...]:
    parts = list_of(value)
    return tuple(str(p) for p in parts) if all(type(p) in (str, int) for p in parts) else ()
