"""What training code may write beside a checkpoint: everything that DCP does not store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MANIFEST_NAME = "fsdp-doctor-manifest.json"
"""The file's name in the checkpoint folder."""
MANIFEST_SCHEMA = "fsdp-doctor-manifest/1"
TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileSum:
    """One file as it was written."""

    size: int
    sha256: str | None = None
    crc32: int | None = None
    tail: str | None = None
    """SHA-256 of the last `TAIL_BYTES`: in a data file of DCP they hold checksums of the last tensor,
    so that a file of another save is told without reading it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """How the run that saved was set up, and what its files' bytes were."""

    schema: str = MANIFEST_SCHEMA
    created: str | None = None
    """ISO 8601, UTC."""
    step: int | None = None
    world_size: int | None = None
    api: str | None = None
    """fsdp2, fsdp1, fsdp1_mesh, ddp or plain."""
    strategy: str | None = None
    """FULL_SHARD, HYBRID_SHARD …"""
    mesh: tuple[int, ...] = ()
    mesh_names: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()
    """Classes that were wrapped."""
    use_orig_params: bool | None = None
    torch: str | None = None
    optimizer: str | None = None
    parameters: tuple[str, ...] = ()
    """Names in the optimizer's order: what integer keys mean."""
    files: Mapping[str, FileSum] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
