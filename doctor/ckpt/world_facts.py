"""How many ranks saved a checkpoint, and into how many parts they cut its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from fsdp_doctor.ckpt.draft import Draft, FileDraft
from fsdp_doctor.subjects.checkpoint import FileRole, Format, Kind, Tensor
from fsdp_doctor.subjects.checkpoint_world import World, WorldSource

LEFT_SECONDS = 60.0
"""An empty file this much older than all others is of an earlier save."""


def world_of(draft: Draft, tensors: Iterable[Tensor]) -> World:
    """From what the format says, else from file names; always with the degree that chunks show."""
    world = draft.world
    if draft.manifest is not None and draft.manifest.world_size:
        base = world or World()
        size = draft.manifest.world_size
        agree = base.size in (None, size)
        world = replace(base, size=size, source=WorldSource.MANIFEST, detail="the manifest", certain=agree)
    elif draft.format is Format.DCP_PER_RANK:
        world = _metadata_files(draft)
    elif draft.format is Format.DCP:
        names = _file_names(draft)
        world = names if world is None or world.size is None or (names.size or 0) > world.size else world
    return _degrees(world or World(), list(tensors))


def _metadata_files(draft: Draft) -> World:
    ranks = sorted({f.rank for f in draft.files if f.role is FileRole.METADATA and f.rank is not None})
    size = max(ranks, default=-1) + 1
    return World(
        size or None,
        WorldSource.METADATA_FILES,
        f"{len(ranks)} files __R.metadata, the highest rank is {size - 1}",
        certain=len(ranks) == size,
        at_least=size,
        writers=tuple(ranks),
    )


def _file_names(draft: Draft) -> World:
    data = [f for f in draft.files if f.role is FileRole.DATA and f.rank is not None]
    finished = draft.dcp is not None and draft.dcp.complete
    used = [f for f in data if f.referenced]
    begun = min((t for f in used if (t := _time(f)) is not None), default=0.0) - LEFT_SECONDS
    idle = [
        f
        for f in data
        if not f.referenced
        and f.node is not None
        and (not f.node.size or not finished)
        and (_time(f) or 0) >= begun
    ]
    ranks = sorted({f.rank for f in [*used, *idle] if f.rank is not None})
    if not ranks:
        return World()
    size = ranks[-1] + 1
    words = f"highest rank {size - 1} in __R_N.distcp"
    certain = finished and len(ranks) == size
    return World(size, WorldSource.FILE_NAMES, words, certain, size, tuple(ranks))


def _time(file: FileDraft) -> float | None:
    return None if file.node is None else file.node.modified


def _degrees(world: World, tensors: list[Tensor]) -> World:
    meshes = [t for t in tensors if t.mesh]
    mesh = max(meshes, key=lambda t: prod(t.mesh), default=None)
    if mesh is not None:
        world = replace(world, mesh=mesh.mesh, mesh_names=mesh.mesh_names)
    degree = world.shard_degree
    if degree is None:
        ours = [t for t in tensors if t.kind is not Kind.OTHER and t.chunks]
        degree = max((len(t.chunks) for t in ours), default=None)
        if mesh is not None and len(mesh.placements) == len(mesh.mesh):
            parted = [
                prod(n for n, p in zip(t.mesh, t.placements, strict=False) if "Shard" in p) for t in meshes
            ]
            degree = max([degree or 1, *parted])
    replicas = None
    if world.size and degree and degree > 1 and world.size % degree == 0 and world.size > degree:
        replicas = world.size // degree
    return replace(world, shard_degree=degree, replicas=replicas)
