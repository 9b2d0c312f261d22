"""Write a tree: as a torch.save file, as safetensors with an index, or as a DCP folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from fsdp_doctor.ckpt.convert import archive
from fsdp_doctor.ckpt.convert.archive import TensorPickle
from fsdp_doctor.ckpt.convert.assemble import casting, values
from fsdp_doctor.ckpt.convert.cursor import BLOCK, Cursor, Files, Piece
from fsdp_doctor.ckpt.convert.dcp_pickle import Item, metadata
from fsdp_doctor.ckpt.convert.model import Archived, ConvertError, TensorLeaf, dotted, leaves
from fsdp_doctor.ckpt.convert.names import Names
from fsdp_doctor.ckpt.convert.output import Output
from fsdp_doctor.tables.torch_dtypes import SAFETENSORS, item_bytes

CHUNK = 64 << 20
"""A part of a whole tensor in a DCP folder: what each rank reads at a time."""
HEADER_STEP = 8
SAFE = {dtype: name for name, dtype in SAFETENSORS.items()}


def torch_file(tree: object, files: Files, out: Output, name: str) -> None:
    """One torch.save file; archived values are in the tree already."""
    pickle = TensorPickle()
    pickle.value(tree, "")
    at = 0

    def raw(data: bytes) -> int:
        nonlocal at
        at += out.unit(name, lambda: _none(out.raw(data)))[0]
        return at

    def data(leaf: TensorLeaf) -> int:
        nonlocal at
        length, crc = out.unit(name, lambda: _none(out.values(values(files, leaf))))
        at += length
        return crc

    archive.write(Path(name).stem or "archive", pickle.done(), pickle.storages.values(), raw, data)


def _none(_: int) -> None:
    """`unit` wants no answer."""


def safetensors(
    tree: object, names: Names, files: Files, out: Output, limit: int, single: str | None
) -> tuple[int, int]:
    """Safetensors files of the model, with an index where they are several. (files, bytes of values)."""
    found: dict[str, TensorLeaf] = {}
    for path, leaf in leaves(tree):
        name = names.found.get(path)
        if name is not None and isinstance(leaf, TensorLeaf):
            if leaf.written not in SAFE:
                raise ConvertError(
                    f"{name[:100]!a} is {leaf.written}, which safetensors cannot hold: use --dtype"
                )
            found[name] = leaf
    if not found:
        raise ConvertError("no tensor of a model is in it")
    shards = _shards(found, limit if single is None else 1 << 62)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        several = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        file = single or ("model.safetensors" if len(shards) == 1 else several)
        ordered = sorted(shard, key=lambda n: (-(item_bytes(found[n].written) or 1), n))
        head = _header(ordered, found)
        out.unit(file, lambda head=head: _none(out.raw(head)))  # type: ignore[misc]
        for name in ordered:
            leaf = found[name]
            out.unit(file, lambda leaf=leaf: _none(out.values(values(files, leaf))))  # type: ignore[misc]
            where[name] = file
    total = sum(leaf.bytes for leaf in found.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        text = json.dumps(index, indent=2) + "\n"
        out.small("model.safetensors.index.json", text.encode())
    return len(shards), total


def _shards(found: dict[str, TensorLeaf], limit: int) -> list[list[str]]:
    """Names per file, in order; a tensor larger than the limit has a file of its own."""
    made: list[list[str]] = []
    size = limit + 1
    for name, leaf in found.items():
        if size + leaf.bytes > limit:
            made.append([])
            size = 0
        made[-1].append(name)
        size += leaf.bytes
    return made


def _header(names: Sequence[str], found: dict[str, TensorLeaf]) -> bytes:
    top: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        leaf = found[name]
        top[name] = {
            "dtype": SAFE[leaf.written],
            "shape": list(leaf.shape),
            "data_offsets": [at, at + leaf.bytes],
        }
        at += leaf.bytes
    raw = json.dumps(top, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    raw += b" " * (-len(raw) % HEADER_STEP)
    return len(raw).to_bytes(8, "little") + raw


@dataclass(slots=True)
class _File:
    number: int = 0
    size: int = 0

    @property
    def name(self) -> str:
        return f"__0_{self.number}.distcp"


def dcp(tree: object, files: Files, out: Output, limit: int) -> int:
    """A DCP folder: data files of about `limit` bytes, and the metadata last. The number of data files."""
    items: list[Item] = []
    file = _File()
    for path, leaf in leaves(tree):
        if file.size >= limit:
            file = _File(file.number + 1)
        key = dotted(path)
        item = Item(key, path, leaf if isinstance(leaf, TensorLeaf) else None)
        items.append(item)
        if isinstance(leaf, TensorLeaf):
            _tensor(item, leaf, files, out, file)
        elif isinstance(leaf, Archived):
            _place(item, (), (), file, out.unit(file.name, lambda leaf=leaf: _copy(files, out, leaf))[0])  # type: ignore[misc]
        else:
            pickle = TensorPickle()
            pickle.value(leaf, key)
            _archive(item, (), (), out, file, pickle)
    keys = [i.key for i in items]
    if len(set(keys)) < len(keys):
        twice = next(k for k in keys if keys.count(k) > 1)
        raise ConvertError(f"two values have the flat key {twice[:100]!a}: DCP cannot hold both")
    out.small(".metadata", metadata(items))
    return file.number + 1


def _tensor(item: Item, leaf: TensorLeaf, files: Files, out: Output, file: _File) -> None:
    """A chunk per part; large whole tensors are cut by rows."""
    parts = [s for s in leaf.sources if prod(s.sizes)]
    if len(parts) > 1:
        for source in parts:
            _chunk(item, source.offsets, source.sizes, leaf, out, file, Cursor(files, source, leaf.dtype))
        return
    cursor = Cursor(files, parts[0], leaf.dtype) if parts else None
    rows, inner = (leaf.shape or (1,))[0], leaf.shape[1:]
    step = max(1, CHUNK // max(1, prod(inner) * (item_bytes(leaf.dtype) or 1)))
    for first in range(0, max(rows, 1), step):
        offsets = (first, *(0 for _ in inner)) if leaf.shape else ()
        sizes = (min(step, rows - first), *inner) if leaf.shape else ()
        _chunk(item, offsets, sizes, leaf, out, file, cursor)


def _chunk(
    item: Item,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    leaf: TensorLeaf,
    out: Output,
    file: _File,
    cursor: Cursor | None,
) -> None:
    """The next rows of a part as an archive of their own."""
    count = prod(sizes) * (item_bytes(leaf.dtype) or 1)
    pickle = TensorPickle()
    pickle.tensor("0", leaf.written, sizes)
    part = TensorLeaf(leaf.dtype, sizes, (), False, leaf.to)
    if out.known and cursor is not None:
        cursor.skip(count)
    pieces = casting(cursor.blocks(count), leaf) if cursor is not None and count else ()
    _archive(item, offsets, sizes, out, file, pickle, [("0", part)], pieces)


def _archive(
    item: Item,
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    out: Output,
    file: _File,
    pickle: TensorPickle,
    storages: Sequence[tuple[str, TensorLeaf]] = (),
    pieces: Iterable[Piece] = (),
) -> None:
    def write() -> None:
        first = out.place()
        archive.write(
            "archive",
            pickle.done(),
            storages,
            lambda data: out.raw(data) - first,
            lambda _: out.values(pieces),
        )

    _place(item, offsets, sizes, file, out.unit(file.name, write)[0])


def _place(item: Item, offsets: tuple[int, ...], sizes: tuple[int, ...], file: _File, length: int) -> None:
    item.chunks.append((offsets, sizes, file.name, file.size, length))
    file.size += length


def _copy(files: Files, out: Output, leaf: Archived) -> None:
    """An archive as it is."""
    source = files.get(leaf.file)
    source.seek(leaf.start)
    left = leaf.length
    while left:
        block = source.read(min(BLOCK, left))
        if not block:
            raise ConvertError(f"{leaf.file} ended while it was read")
        out.raw(block)
        left -= len(block)
