"""Who should be there: the job's size, hosts, processes and GPUs, by all that the logs say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fsdp_doctor.diagnosis import markers
from fsdp_doctor.diagnosis.records import SourceScan
from fsdp_doctor.diagnosis.who import Who
from fsdp_doctor.subjects.incident import Exit, Hit, JobShape

MAX_RANK = 1_000_000


def job_shape(scans: Sequence[SourceScan], hits: Sequence[Hit], exits: Sequence[Exit], who: Who) -> JobShape:
    """The job, as far as it is told or can be inferred."""
    ranks = {r for s in scans for k, v in s.seen.items() if (r := who.rank(s.name, k)) is not None}
    ranks |= {h.origin.rank for h in hits if h.origin.rank is not None} | {
        e.rank for e in exits if e.rank is not None
    }
    hosts = {e.rank: e.host for e in exits if e.rank is not None and e.host}
    for s in scans:
        for key in s.seen:
            if key[3] and (rank := who.rank(s.name, key)) is not None:
                hosts.setdefault(rank, key[3])
        for mark in s.marked:
            if mark.code == markers.IDENTITY and mark.origin.host and mark.origin.pid is not None:
                rank = who.by_pid.get((mark.origin.host, mark.origin.pid))
                if rank is not None:
                    hosts.setdefault(rank, mark.origin.host)
    pids = {r: p for (h, p), r in who.by_pid.items()}
    size, stated, basis = _world(scans, hits, ranks)
    versions = [
        m.fields["torch"]
        for s in scans
        for m in s.marked
        if m.code == markers.VERSION and "torch" in m.fields
    ]
    nccl = next((h.fields["ver"] for h in hits if h.code == "LOG122" and "ver" in h.fields), None)
    return JobShape(
        world_size=size,
        stated=stated,
        basis=basis,
        ranks_seen=tuple(sorted(ranks)),
        hosts=hosts,
        pids=pids,
        processes=frozenset(_own_processes(pids, hits, exits)),
        buses=_buses(scans, who),
        nodes=max(
            (int(m.fields["nodes"]) for s in scans for m in s.marked if "nodes" in m.fields), default=None
        ),
        restarts=max((s.attempts + s.path_attempt for s in scans), default=0),
        torch=versions[-1] if versions else None,
        nccl=nccl,
        launcher="torchrun" if any(e.reporter == "torchrun" for e in exits) else None,
    )


def _own_processes(pids: Mapping[int, int], hits: Sequence[Hit], exits: Sequence[Exit]) -> Iterable[int]:
    """Processes of ranks, those included that a launcher only stopped."""
    yield from pids.values()
    yield from (e.pid for e in exits if e.pid is not None)
    yield from (int(h.fields["pid"]) for h in hits if h.code == "LOG202" and "pid" in h.fields)


def _buses(scans: Sequence[SourceScan], who: Who) -> dict[int, int]:
    found: dict[int, set[int]] = {}
    for scan in scans:
        for mark in scan.marked:
            rank = (
                who.by_pid.get((mark.origin.host, mark.origin.pid)) if mark.origin.pid is not None else None
            )
            if mark.code == markers.IDENTITY and "bus" in mark.fields and rank is not None:
                try:
                    found.setdefault(int(mark.fields["bus"], 16), set()).add(rank)
                except ValueError:
                    continue
    return {bus: ranks.pop() for bus, ranks in found.items() if len(ranks) == 1}


def _world(scans: Sequence[SourceScan], hits: Sequence[Hit], ranks: set[int]) -> tuple[int | None, bool, str]:
    lowest = max(ranks, default=-1) + 1
    said: Counter[int] = Counter()
    for scan in scans:
        for mark in scan.marked:
            if mark.code in (markers.WORLD, markers.IDENTITY):
                number = mark.fields.get("n") or mark.fields.get("n2")
                if number and 0 < int(number) <= MAX_RANK:
                    said[int(number)] += 1
            elif mark.code == markers.PER_NODE and "per" in mark.fields:
                nodes = [
                    int(m.fields["nodes"])
                    for s in scans
                    for m in s.marked
                    if m.code == markers.PER_NODE and "nodes" in m.fields
                ]
                said[int(mark.fields["per"]) * max(nodes, default=1)] += 1
    fitting = [n for n, _ in said.most_common() if n >= lowest]
    if fitting:
        return max(fitting), True, "the logs say so"
    if (gpus := max((r.gpus or 0 for s in scans for r in s.ras), default=0)) >= max(lowest, 1):
        return gpus, True, "NCCL's RAS counts so many GPUs"
    for hit in hits:
        if hit.code == "LOG140" and int(hit.fields["want"]) >= lowest:
            return int(hit.fields["want"]), True, "the store waited for so many"
    implied = [
        int(h.fields["nout"]) // int(h.fields["nin"])
        for h in hits
        if h.code == "LOG101" and "ALLGATHER" in h.fields.get("op", "") and int(h.fields.get("nin", 0)) > 0
    ]
    if implied and max(implied) >= max(lowest, 2):
        return max(implied), False, "the sizes of an all-gather imply it"
    return (lowest, False, "the highest rank seen") if lowest > 0 else (None, False, "")
