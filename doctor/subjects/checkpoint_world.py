"""How many ranks saved a checkpoint, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WorldSource(str, Enum):
    """What a world size was inferred from."""

    MANIFEST = "manifest"
    FILE_NAMES = "file names"
    METADATA_FILES = "per-rank metadata files"
    PROCESS_GROUP = "pickled process group"
    DEVICE_MESH = "pickled device mesh"
    RANK_FILES = "files per rank"
    SHARD_NUMBERS = "shard numbers"
    KEYS = "keys"
    """`dataloader.world_size` and the like."""
    NONE = "nothing on disk tells"


@dataclass(frozen=True, slots=True)
class World:
    """How many ranks saved it, and how that is known."""

    size: int | None = None
    source: WorldSource = WorldSource.NONE
    detail: str = ""
    """In words: "highest rank 3 in __R_N.distcp"."""
    certain: bool = True
    """False for a lower bound or where sources disagree."""
    at_least: int | None = None
    writers: tuple[int, ...] = ()
    """Ranks that own at least one file, whether or not it holds anything."""
    present: tuple[int, ...] = ()
    """Ranks whose files (of a format with a file per rank) are there."""
    shard_degree: int | None = None
    """Most chunks of any tensor along the sharded dimensions; 1 for whole tensors."""
    replicas: int | None = None
    """World size over shard degree, where that is a whole number above 1: HSDP."""
    mesh: tuple[int, ...] = ()
    mesh_names: tuple[str, ...] = ()
