"""Convert in this process: what the child does."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from fsdp_doctor.ckpt.convert import merge, targets
from fsdp_doctor.ckpt.convert.archived import resolved
from fsdp_doctor.ckpt.convert.cursor import Files
from fsdp_doctor.ckpt.convert.model import Archived, ConvertError, Opaque, TensorLeaf, leaves, tensors
from fsdp_doctor.ckpt.convert.names import Names, Wish, apply
from fsdp_doctor.ckpt.convert.output import Output
from fsdp_doctor.ckpt.convert.sources import tree_of
from fsdp_doctor.ckpt.coverage import coverage
from fsdp_doctor.ckpt.reading import open_store, read_here
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.subjects.checkpoint import CheckpointIndex
from fsdp_doctor.tables.torch_dtypes import item_bytes

TO = ("dcp", "torch", "safetensors", "merge-metadata")
SHARD_BYTES = 5 * 10**9
LISTED = 6


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    source: str
    target: str
    to: str
    strip: str = ""
    add: str = ""
    dtype: str | None = None
    model_only: bool = False
    shard_bytes: int = SHARD_BYTES


@dataclass(slots=True)
class Converted:
    """What was done."""

    format: str = ""
    """Of the source."""
    tensors: int = 0
    bytes: int = 0
    """Of the values that were written."""
    files: int = 1
    left_out: tuple[str, ...] = ()
    cast: str | None = None
    renamed: int = 0
    resumed: int = 0
    """Bytes that an interrupted run had written."""
    seconds: float = 0.0
    target: str = ""


def convert(order: Order, total: Callable[[int], None], progress: Callable[[int], None]) -> Converted:
    """Convert. `total` hears how many bytes there are, `progress` of those done. Raises `ConvertError`."""
    began = time.monotonic()
    index = read_here(order.source, values=False)
    store = open_store(order.source)
    tree = tree_of(index, store)
    done = Converted(format=index.format.value, target=order.target)
    if order.to == "merge-metadata":
        _merge(order, index, store, tree, done)
    else:
        _rewrite(order, index, store, tree, done, total, progress)
    done.seconds = time.monotonic() - began
    return done


def _plan(order: Order, index: CheckpointIndex) -> str:
    """Equal only for the same options and untouched source files."""
    stamps = [(f.path, f.size, f.modified) for f in index.files]
    raw = json.dumps([2, asdict(order), stamps], sort_keys=True)
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


def _merge(
    order: Order, index: CheckpointIndex, store: Store, tree: dict[object, object], done: Converted
) -> None:
    raw = merge.merged(tree, index)
    done.tensors = len(index.tensors)
    if os.path.realpath(order.source) == os.path.realpath(order.target):
        merge.in_place(raw, order.source)
        return
    out = Output(order.target, True, _plan(order, index))
    done.files = merge.into_folder(raw, index, store, out)
    out.finish()


def _rewrite(
    order: Order,
    index: CheckpointIndex,
    store: Store,
    tree: dict[object, object],
    done: Converted,
    total: Callable[[int], None],
    progress: Callable[[int], None],
) -> None:
    files = Files(store)
    names = Names(tree, index)
    safe = order.to == "safetensors"
    wish = Wish(order.strip, order.add, order.dtype, order.model_only or safe)
    if not wish.model_only and (order.to == "torch" or wish.strip or wish.add):
        resolve = resolved(files, tree)
        assert isinstance(resolve, dict)
        tree = resolve
    done.left_out = _left_out(tree, names) if wish.model_only else ()
    before = names.all
    tree, names = apply(tree, names, wish)
    done.renamed = len(before - names.all)
    _judge(tree)
    held = dict(tensors(tree))
    done.tensors = len(held)
    done.bytes = sum(leaf.bytes for leaf in held.values())
    done.cast = order.dtype if any(leaf.to for leaf in held.values()) else None
    total(done.bytes)
    single = os.path.basename(order.target) if _is_file(order) else None
    out = Output(order.target, single is None, _plan(order, index), progress)
    done.resumed = out.resumed
    try:
        if order.to == "torch":
            targets.torch_file(tree, files, out, single or "model.pt")
        elif safe:
            done.files, done.bytes = targets.safetensors(tree, names, files, out, order.shard_bytes, single)
        else:
            done.files = targets.dcp(tree, files, out, order.shard_bytes)
        out.finish()
    except ConvertError:  # calling it again would not go further
        out.discard()
        raise


def _is_file(order: Order) -> bool:
    return order.to == "torch" or (order.to == "safetensors" and order.target.endswith(".safetensors"))


def _left_out(tree: dict[object, object], names: Names) -> tuple[str, ...]:
    """Top keys, or their parts, of what does not belong to the model."""
    seen: dict[str, int] = {}
    for path, _ in leaves(tree):
        if path not in names.found and path:
            seen[str(path[0])] = seen.get(str(path[0]), 0) + 1
    listed = [f"{key} ({count})" if count > 1 else key for key, count in list(seen.items())[:LISTED]]
    return (*listed, f"{len(seen) - LISTED} more keys") if len(seen) > LISTED else tuple(listed)


def _judge(tree: dict[object, object]) -> None:
    """Raise `ConvertError` for tensors that are not whole and values that cannot be written."""
    for path, leaf in leaves(tree):
        _value(".".join(map(str, path)), leaf)


def _value(key: str, leaf: object) -> None:
    if isinstance(leaf, Opaque):
        raise ConvertError(
            f"{key[:100]!a} holds {leaf.name}, which cannot be written again without running it or losing "
            "something: --model-only leaves it out"
        )
    if isinstance(leaf, (list, tuple)):
        for value in leaf:
            _value(key, value)
    if not isinstance(leaf, TensorLeaf) or isinstance(leaf, Archived):
        return
    if item_bytes(leaf.dtype) is None or leaf.dtype.startswith("q"):
        raise ConvertError(f"{key[:100]!a} is of dtype {leaf.dtype}, which is not converted")
    from array import array

    rows = array("q")
    for source in leaf.sources:
        rows.extend((*source.offsets, *source.sizes, 0, 0, 0, 0))
    found = coverage(leaf.shape, rows)
    if not found.whole:
        why = f"{found.missing} elements are held by no part" if found.missing else "its parts overlap"
        raise ConvertError(f"{key[:100]!a} {list(leaf.shape)} is not whole: {why}")
