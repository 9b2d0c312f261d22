"""What the statistics of `localise` share: who is compared with whom, and how much is too much."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from fsdp_doctor.probe.busy import busy_words
from fsdp_doctor.subjects.fabric import Culprit
from fsdp_doctor.subjects.probe import ProbeResult, RankMeasurement
from fsdp_doctor.tables.probe_thresholds import BUSY_CPU, HARDWARE, SHARED_CPU, Floors

INSIDE = "inside the node"
BETWEEN = "between nodes"


def floors(result: ProbeResult) -> Floors:
    """The limits for this kind of machine: ranks on CPU cores share them, GPUs are alone."""
    return HARDWARE if result.device == "cuda" else SHARED_CPU


def weighed(result: ProbeResult) -> Floors:
    """The limits for what is concluded in the end: higher where others used the ranks' cores meanwhile."""
    return BUSY_CPU if busy_words(result) else floors(result)


def hosts(result: ProbeResult) -> Mapping[str, tuple[int, ...]]:
    """Host -> its ranks that reported."""
    found: dict[str, list[int]] = defaultdict(list)
    for r in sorted(result.ranks, key=lambda r: r.rank):
        found[r.host].append(r.rank)
    return {h: tuple(dict.fromkeys(ranks)) for h, ranks in found.items()}


def local_rank(rank: RankMeasurement, by_host: Mapping[str, tuple[int, ...]]) -> int:
    """The rank's place on its host, as it says or as its order among the host's ranks."""
    return rank.local_rank if rank.local_rank is not None else by_host[rank.host].index(rank.rank)


def nvlinked(result: ProbeResult) -> bool:
    """Whether the GPUs are known to be joined by NVLink, so that their places on the board do not matter."""
    return any((n.nvlink_gbps or 0) > 0 for n in result.links)


@dataclass(frozen=True, slots=True)
class Slower:
    """One value against the median of the others of its kind."""

    ratio: float
    value: float
    reference: float


def against_others(values: Mapping[int, float], kinds: Mapping[int, Hashable]) -> dict[int, Slower]:
    """Each rank's time over the median time of the other ranks of its kind, where there are any."""
    found = {}
    for rank, value in values.items():
        others = [v for q, v in values.items() if q != rank and kinds.get(q) == kinds.get(rank)]
        if others and (reference := statistics.median(others)) > 0:
            found[rank] = Slower(value / reference, value, reference)
    return found


def decided(culprit: Culprit, limits: Floors, again: bool | None, warn: float, fail: float) -> Culprit | None:
    """The culprit with its weight; None where it is within `warn`, refuted, or too little for one look.

    `again` is what a repetition said: slow, not slow, or None where there was none. Without one a
    failure is never claimed, and a small excess is not even mentioned.
    """
    if culprit.ratio < warn or again is False:
        return None
    if again is None and culprit.ratio < limits.once:
        return None
    return replace(culprit, confirmed=bool(again), fails=bool(again) and culprit.ratio >= fail)


def named(culprits: Iterable[Culprit]) -> frozenset[int]:
    """Ranks that some culprit names, whose other measurements are thereby explained."""
    return frozenset(r for c in culprits for r in c.ranks)
