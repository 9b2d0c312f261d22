"""Who is who: ways from what a line's prefix tells to the global rank of its writer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fsdp_doctor.diagnosis import markers
from fsdp_doctor.diagnosis.file_tasks import ranks_of_files
from fsdp_doctor.diagnosis.records import Key, SourceScan


@dataclass(slots=True)
class Who:
    """Ways to a global rank."""

    by_pid: dict[tuple[str | None, int], int] = field(default_factory=dict)
    by_local: dict[tuple[str, int], int] = field(default_factory=dict)
    """(file, local rank) -> rank."""
    by_host: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    """File -> what to add to its local ranks."""
    tasks_are_ranks: bool = True
    by_file: dict[str, int] = field(default_factory=dict)
    """File of one task -> rank."""

    def rank(self, file: str, key: Key, pid: int | None = None, said: str | None = None) -> int | None:
        """The global rank of a line's writer; None where nothing tells."""
        rank, local, task, host = key
        if rank is not None:
            return rank
        if local is not None:
            mapped = self.by_local.get((file, local))
            if mapped is not None:
                return mapped
            return local + self.offsets[file] if file in self.offsets else None
        if pid is not None:
            for where in (host, None):
                if (where, pid) in self.by_pid:
                    return self.by_pid[where, pid]
        if said is not None:
            return int(said)
        if task is not None and self.tasks_are_ranks:
            return task
        if host and host in self.by_host:
            return self.by_host[host]
        return self.by_file.get(file)


def who_is_who(scans: Sequence[SourceScan]) -> Who:
    """What all sources together tell."""
    who = Who()
    for scan in scans:
        for entry in scan.exits:
            if entry.rank is not None:
                if entry.pid is not None:
                    who.by_pid[entry.host, entry.pid] = entry.rank
                    who.by_pid.setdefault((None, entry.pid), entry.rank)
                if entry.local_rank is not None:
                    who.by_local[scan.name, entry.local_rank] = entry.rank
        for key in (*scan.seen, *(f.key for f in scan.found)):
            if key[0] is not None and key[1] is not None:
                who.by_local[scan.name, key[1]] = key[0]
        largest = max((int(m.fields["n"]) for m in scan.marked if m.code == markers.IDENTITY), default=0)
        for mark in scan.marked:
            if (
                mark.code == markers.IDENTITY
                and int(mark.fields["n"]) == largest
                and mark.origin.pid is not None
            ):
                who.by_pid[mark.origin.host, mark.origin.pid] = int(mark.fields["rank"])
    _offsets(scans, who)
    _processes(scans, who)
    _tasks(scans, who)
    _pods(scans, who)
    if not (who.by_pid or who.by_local or who.by_host):
        who.by_file = ranks_of_files(scans)
    return who


def _processes(scans: Sequence[SourceScan], who: Who) -> None:
    """Processes whose rank their launcher, or the program itself, told when they began."""
    for scan in scans:
        for mark in scan.marked:
            if mark.code != markers.PROCESS:
                continue
            pid = int(mark.fields.get("pid") or mark.fields["pid2"])
            if "rank" in mark.fields:
                rank: int | None = int(mark.fields["rank"])
            else:
                rank = who.rank(scan.name, (None, int(mark.fields["lr"]), None, None))
            if rank is not None:
                who.by_pid.setdefault((mark.origin.host, pid), rank)


def _offsets(scans: Sequence[SourceScan], who: Who) -> None:
    """Local ranks of several nodes' files to global ones, by what a file itself tells, else by its number."""
    local: dict[str, set[int]] = {}
    for scan in scans:
        for rank, own, _, _ in (*scan.seen, *(f.key for f in scan.found)):
            if rank is None and own is not None:
                local.setdefault(scan.name, set()).add(own)
        named = [
            *(f.hit.fields for f in scan.found if f.hit.code == "LOG201"),
            *(m.fields for m in scan.marked),
        ]
        if numbers := {int(fields["lr"]) for fields in named if fields.get("lr", "").isdigit()}:
            local.setdefault(scan.name, set()).update(numbers)
    per_node = max((max(v) for v in local.values()), default=0) + 1
    nodes: dict[str, list[str]] = {}
    known: dict[str, set[int]] = {}
    for name in local:
        node = _node_of(name)
        nodes.setdefault(node, []).append(name)
        known.setdefault(node, set()).update(r - o for (f, o), r in who.by_local.items() if f == name)
    sure = {node: found.pop() for node, found in known.items() if len(found) == 1}
    for index, node in enumerate(sorted(nodes, key=_natural)):
        offset = sure.get(node, index * per_node if not sure else None)
        if offset is not None:
            who.offsets.update(dict.fromkeys(nodes[node], offset))


def _node_of(name: str) -> str:
    """What of a path tells the node: all but the parts that tell attempt, local rank and stream."""
    return re.sub(
        r"(?:/|^)attempt_\d+/\d+/(?:stdout|stderr)\.log.*|(?:/|^)attempt_\d+/\d+/error\.json", "", name
    )


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", text)]


def _tasks(scans: Sequence[SourceScan], who: Who) -> None:
    """Whether srun's numbers are ranks: not where the lines of one task come from several ranks."""
    said: dict[int, set[int]] = {}
    for scan in scans:
        for rank, local, task, _ in (*scan.seen, *(f.key for f in scan.found)):
            if task is not None and (rank is not None or local is not None):
                said.setdefault(task, set()).add(rank if rank is not None else -1 - (local or 0))
    who.tasks_are_ranks = all(len(ranks) == 1 for ranks in said.values())


def _pods(scans: Sequence[SourceScan], who: Who) -> None:
    """One rank per pod, where pods are numbered and none of their lines names a rank."""
    said: dict[str, set[int | None]] = {}
    for scan in scans:
        for rank, local, _, host in (*scan.seen, *(f.key for f in scan.found)):
            if host:
                said.setdefault(host, set()).update({rank} if local is None else {rank, -1})
    numbers = {
        p: (m[1], int(m[2])) for p in said if (m := re.search(r"-?(master|worker|rank|launcher)?-(\d+)$", p))
    }
    masters = any(role == "master" for role, _ in numbers.values())
    ranks = {p: n + 1 if masters and role == "worker" else n for p, (role, n) in numbers.items()}
    alone = all(said[p] <= {None, rank} for p, rank in ranks.items())
    if len(ranks) > 1 and alone and len(set(ranks.values())) == len(ranks) == len(said):
        who.by_host.update(ranks)
