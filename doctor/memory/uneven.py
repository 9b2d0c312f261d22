"""FSDP1's flat parameters over the ranks: where a unit is partly frozen, ranks differ in what they train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import prod

from fsdp_doctor.memory.job import Job
from fsdp_doctor.subjects.memory import Assumption

COPIES = {"adam": 2, "sgdm": 1, "rmsprop": 1, "adagrad": 1, "adafactor": 1}
"""States of the size of a parameter, by how an optimizer's name begins."""
WORTH = 1 << 20
"""Bytes from which it is told."""


def uneven(about: Mapping[str, object], job: Job) -> Iterator[Assumption]:
    """The rank of a shard group that keeps most optimizer state, where it is not rank 0."""
    copies = next((n for name, n in COPIES.items() if job.optimizer.startswith(name)), 0)
    listed = about.get("parameters")
    if job.api != "fsdp1" or not job.use_orig_params or job.shard_group < 2 or not copies:
        return
    units: dict[int, list[tuple[int, bool, int]]] = {}
    for p in listed if isinstance(listed, list) else ():
        if not p.get("ignored"):
            elements = prod(int(d) for d in p["shape"])
            units.setdefault(int(p["unit"]), []).append(
                (elements, bool(p["trainable"]), int(p["item_bytes"]))
            )
    states = [copies * n for n in trained(list(units.values()), job.shard_group)]
    most = max(states)
    if most - states[0] >= WORTH:
        what = (
            f"it keeps {most - states[0]} bytes of optimizer state more than rank 0, whose parts of flat "
            "parameters hold more of what is frozen"
        )
        yield Assumption(f"rank {states.index(most)}", what, 1)


def trained(units: list[list[tuple[int, bool, int]]], ranks: int) -> list[int]:
    """Bytes of each rank's shards that train. A unit has (elements, trains, item bytes) in the flat order."""
    own, through = [0] * ranks, [0] * (ranks + 1)
    for unit in units:
        shard = -(-sum(n for n, _, _ in unit) // ranks)
        begin = 0
        for n, trains, item in unit:
            end = begin + n
            if trains and n:
                first, last = begin // shard, (end - 1) // shard
                if first == last:
                    own[first] += n * item
                else:
                    own[first] += ((first + 1) * shard - begin) * item
                    own[last] += (end - last * shard) * item
                    through[first + 1] += shard * item
                    through[last] -= shard * item
            begin = end
    return [a + b for a, b in zip(own, accumulate(through[:ranks]), strict=True)]
