"""DCP's `.metadata`, written by opcodes for torch's own classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_doctor.ckpt.convert.model import Path, TensorLeaf
from fsdp_doctor.ckpt.convert.opcodes import Pickle

MODULE = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
VERSION = "1.0.0"
ChunkPlace = tuple[tuple[int, ...], tuple[int, ...], str, int, int]
"""Offsets, sizes, file, start and length."""


@dataclass(slots=True)
class Item:
    """One key of the checkpoint; `tensor` is None for any other value, which has one place."""

    key: str
    path: Path
    tensor: TensorLeaf | None
    chunks: list[ChunkPlace] = field(default_factory=list)


def metadata(items: Sequence[Item]) -> bytes:
    """The pickle of a `Metadata`."""
    pickle = Pickle(4)
    pickle.begin(MODULE, "Metadata")
    pickle.text("state_dict_metadata")
    pickle.out += b"}("
    for item in items:
        pickle.text(item.key)
        _described(pickle, item)
    pickle.out += b"u"
    pickle.text("planner_data")
    pickle.out += b"}("
    for item in items:
        pickle.text(item.key)
        pickle.out += b"("
        for step in item.path:
            pickle.value(step, item.key)
        pickle.out += b"t"
    pickle.out += b"u"
    pickle.text("storage_data")
    pickle.out += b"}("
    for item in items:
        for number, chunk in enumerate(item.chunks):
            _placed(pickle, item, number, chunk)
    pickle.out += b"u"
    pickle.text("storage_meta")
    pickle.out += b"N"
    pickle.text("version")
    pickle.text(VERSION)
    pickle.end()
    return pickle.done()


def _described(pickle: Pickle, item: Item) -> None:
    if item.tensor is None:
        pickle.begin(MODULE, "BytesStorageMetadata")
        pickle.end()
        return
    pickle.begin(MODULE, "TensorStorageMetadata")
    pickle.text("properties")
    pickle.name(MODULE, "TensorProperties")
    pickle.out += b")\x81("
    pickle.name("torch", item.tensor.written)
    pickle.name("torch.serialization", "_get_layout")
    pickle.text("torch.strided")
    pickle.out += b"\x85R"
    pickle.truth(item.tensor.requires_grad)
    pickle.name(MODULE, "_MEM_FORMAT_ENCODING")
    pickle.number(0)
    pickle.out += b"\x85R"
    pickle.truth(False)
    pickle.out += b"tb"
    pickle.text("size")
    pickle.size(item.tensor.shape)
    pickle.text("chunks")
    pickle.out += b"]("
    for offsets, sizes, *_ in item.chunks:
        pickle.begin(MODULE, "ChunkStorageMetadata")
        pickle.text("offsets")
        pickle.size(offsets)
        pickle.text("sizes")
        pickle.size(sizes)
        pickle.end()
    pickle.out += b"e"
    pickle.end()


def _placed(pickle: Pickle, item: Item, number: int, chunk: ChunkPlace) -> None:
    offsets, _, file, start, length = chunk
    pickle.begin(MODULE, "MetadataIndex")
    pickle.text("fqn")
    pickle.text(item.key)
    pickle.text("offset")
    if item.tensor is None:
        pickle.out += b"N"
    else:
        pickle.size(offsets)
    pickle.text("index")
    if item.tensor is None:
        pickle.out += b"N"
    else:
        pickle.number(number)
    pickle.end()
    pickle.begin(FILESYSTEM, "_StorageInfo")
    pickle.text("relative_path")
    pickle.text(file)
    pickle.text("offset")
    pickle.number(start)
    pickle.text("length")
    pickle.number(length)
    pickle.end()
