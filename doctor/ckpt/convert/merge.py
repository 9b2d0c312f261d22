"""One `.metadata` of those that ranks wrote for themselves (use_collectives=False): no tensor moves."""

from __future__ import annotations

import os
import shutil

from fsdp_doctor.ckpt.convert.dcp_pickle import Item, metadata
from fsdp_doctor.ckpt.convert.model import Archived, ConvertError, TensorLeaf, dotted, leaves
from fsdp_doctor.ckpt.convert.output import Output
from fsdp_doctor.ckpt.store import Store
from fsdp_doctor.subjects.checkpoint import CheckpointIndex, FileRole, Format


def merged(tree: object, index: CheckpointIndex) -> bytes:
    """The metadata of the whole. Raises `ConvertError` for another format."""
    if index.format is not Format.DCP_PER_RANK:
        raise ConvertError(
            f"{index.format.value}: merge-metadata is for DCP saved with use_collectives=False (__R.metadata)"
        )
    items: list[Item] = []
    for path, leaf in leaves(tree):
        item = Item(dotted(path), path, leaf if isinstance(leaf, TensorLeaf) else None)
        if isinstance(leaf, TensorLeaf):
            item.chunks += [(s.offsets, s.sizes, s.file, s.start, s.length) for s in leaf.sources]
        elif isinstance(leaf, Archived):
            item.chunks.append(((), (), leaf.file, leaf.start, leaf.length))
        items.append(item)
    return metadata(items)


def into_folder(raw: bytes, index: CheckpointIndex, store: Store, out: Output) -> int:
    """A folder with the metadata and hard links to the data files, else copies. How many."""
    count = 0
    for file in index.files:
        if file.role is not FileRole.DATA or not file.referenced:
            continue
        source, target = os.path.join(store.root, file.path), out.work / "files" / file.path
        if target.exists():
            target.unlink()
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copyfile(source, target)
        count += 1
    out.small(".metadata", raw)
    return count


def in_place(raw: bytes, folder: str) -> None:
    """Write the metadata beside the ranks' own."""
    temporary, target = os.path.join(folder, ".metadata.tmp"), os.path.join(folder, ".metadata")
    if os.path.lexists(target):
        raise ConvertError(f"{target} exists already")
    with open(temporary, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, target)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
