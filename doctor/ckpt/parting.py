"""Which part of a DTensor a rank holds, from mesh and placements."""

from __future__ import annotations

import re
from math import prod

SHARD = re.compile(r"Shard\((\d{1,4})\)")


def local_place(
    shape: tuple[int, ...],
    placements: tuple[str, ...],
    mesh: tuple[int, ...],
    rank: int,
    world: int | None,
    sizes: tuple[int, ...],
) -> tuple[int, ...] | None:
    """Offsets of a rank's part; None where they cannot be told.

    Ranks count through the mesh with its last dimension fastest, as `init_device_mesh` lays them out. A
    `_StridedShard` (FSDP over tensor parallelism) has no single offset.
    """
    offsets, left = [0] * len(shape), list(shape)
    if not mesh or len(mesh) != len(placements) or prod(mesh) < 1:
        return None
    if rank >= prod(mesh):
        if world is None or rank >= world:
            return None
        rank %= prod(mesh)
    coordinates = []
    for length in reversed(mesh):
        coordinates.append(rank % length)
        rank //= length
    for place, length, at in zip(placements, mesh, reversed(coordinates), strict=True):
        if place.startswith(("Replicate", "Partial")):
            continue
        found = SHARD.fullmatch(place)
        if found is None or int(found[1]) >= len(shape):
            return None
        d = int(found[1])
        per = -(-left[d] // length)
        start = min(at * per, left[d])
        offsets[d] += start
        left[d] = min(per, left[d] - start)
    return tuple(offsets) if tuple(left) == sizes else None
