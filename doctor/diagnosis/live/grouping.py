"""Ranks that stand at the same place, in groups: the method of STAT and of stack aggregation."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp_doctor.diagnosis.live.place import same
from fsdp_doctor.subjects.stacks import Place, RankProcess, StackGroup


def groups(processes: Sequence[RankProcess]) -> tuple[StackGroup, ...]:
    """Groups of equal places, the largest first; ranks without a stack are in none."""
    found: list[tuple[Place, list[int]]] = []
    for process in processes:
        if process.place is None or not process.threads:
            continue
        for place, members in found:
            if same(place, process.place):
                members.append(name(process))
                break
        else:
            found.append((process.place, [name(process)]))
    ordered = sorted(found, key=lambda g: (-len(g[1]), g[1]))
    return tuple(StackGroup(place, tuple(sorted(members))) for place, members in ordered)


def name(process: RankProcess) -> int:
    """The rank, or the process id where the rank is not known."""
    return process.rank if process.rank is not None else process.pid
