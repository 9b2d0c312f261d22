"""From what single sources gave to one incident: who is who, how many there should be, whose clock is off."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsdp_doctor.diagnosis import clocks, markers, oom
from fsdp_doctor.diagnosis.phase_times import kernel_seconds
from fsdp_doctor.diagnosis.progress import thin
from fsdp_doctor.diagnosis.records import Found, Key, SourceScan
from fsdp_doctor.subjects.incident import (
    Exit,
    Frame,
    Hit,
    Incident,
    Input,
    JobShape,
    LastLine,
    Origin,
    RecorderConclusion,
    StepPoint,
    ThreadStack,
)

MAX_RANK = 1_000_000
CALL_SITE_REACH = 12
"""Lines after a collective's timeout within which torch prints where it was called."""
TIMED_OUT = ("LOG101", "LOG103", "LOG105", "LOG120")


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
        return self.by_host.get(host) if host else None


def assemble(
    scans: Sequence[SourceScan],
    inputs: Iterable[Input] = (),
    recorder: Iterable[RecorderConclusion] = (),
    truncated: bool = False,
) -> Incident:
    """One incident of all sources."""
    for scan in scans:
        _part_attempts(scan)
    who = _who(scans)
    found = [(s, f) for s in scans for f in s.found]
    hits = _hits(found, who)
    exits = _exits(scans, who)
    job = _job(scans, hits, exits, who)
    steps = _steps(scans, who)
    hits = _with_call_sites(hits, scans, who)
    shifts = clocks.offsets(_simultaneous(hits))
    if shifts:
        hits = [replace(h, origin=_shifted(h.origin, shifts)) for h in hits]
    return Incident(
        inputs=(*(Input(s.name, _kind(s), s.bytes, s.lines, s.problem) for s in scans), *inputs),
        hits=tuple(hits),
        exits=tuple(exits),
        accounts=tuple(a for s in scans for a in s.accounts),
        ras=tuple(r for s in scans for r in s.ras),
        job=job,
        steps=tuple(steps),
        nccl_seconds=_nccl_seconds(scans, who),
        last_lines=tuple(_last_lines(scans, who)),
        stacks=tuple(_stacks(scans, who)),
        recorder=tuple(recorder),
        ooms=oom.reports(hits),
        done=tuple(sorted(_done(scans, who))),
        clock_offsets=shifts,
        truncated=truncated,
    )


def _kind(scan: SourceScan) -> str:
    return "accounting" if scan.kind == "log" and scan.accounts and not scan.found else scan.kind


def _part_attempts(scan: SourceScan) -> None:
    """Tell attempts apart in a log whose launcher does not say that it restarts: a second report of a failed
    process by the same agent is of another attempt than the first.
    """
    if scan.attempts or scan.path_attempt:
        return
    reports: dict[int | None, list[int]] = {}
    for entry in scan.found:
        if entry.hit.code == "LOG201":
            reports.setdefault(entry.hit.origin.pid, []).append(entry.hit.origin.line)
    ends = max(reports.values(), key=len, default=[])[:-1]
    if not ends:
        return

    def moved(origin: Origin) -> Origin:
        return replace(origin, attempt=origin.attempt + sum(end < origin.line for end in ends))

    for entry in scan.found:
        entry.hit = replace(entry.hit, origin=moved(entry.hit.origin))
    for mark in scan.marked:
        mark.origin = moved(mark.origin)
    scan.exits = [replace(e, origin=moved(e.origin)) for e in scan.exits]
    scan.attempts = len(ends)


def _shifted(origin: Origin, shifts: Mapping[str, float]) -> Origin:
    shift = shifts.get(origin.file)
    return origin if shift is None or origin.time is None else replace(origin, time=origin.time + shift)


def _simultaneous(hits: Iterable[Hit]) -> Iterable[tuple[str, tuple[str, int], float]]:
    for hit in hits:
        if (
            hit.code == "LOG101"
            and hit.origin.time is not None
            and "ran" in hit.fields
            and "seq" in hit.fields
        ):
            group = hit.fields.get("pg", "") + hit.fields.get("op", "")
            yield (
                hit.origin.file,
                (group, int(hit.fields["seq"])),
                hit.origin.time - int(hit.fields["ran"]) / 1000,
            )


# who is who


def _who(scans: Sequence[SourceScan]) -> Who:
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
    _tasks(scans, who)
    _pods(scans, who)
    return who


def _offsets(scans: Sequence[SourceScan], who: Who) -> None:
    """Local ranks of several nodes' files to global ones, by what a file itself tells, else by its number."""
    local: dict[str, set[int]] = {}
    for scan in scans:
        for rank, own, _, _ in (*scan.seen, *(f.key for f in scan.found)):
            if rank is None and own is not None:
                local.setdefault(scan.name, set()).add(own)
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


# parts


def _hits(found: Sequence[tuple[SourceScan, Found]], who: Who) -> list[Hit]:
    hits: list[Hit] = []
    for order, (scan, entry) in enumerate(found):
        hit = entry.hit
        said = hit.fields.get("said_rank")
        if (
            said is not None
            and hit.fields.get("pg") not in (None, "default_pg", "0", "")
            and hit.fields.get("pg_rank") == said
        ):
            said = None
        rank = who.rank(scan.name, entry.key, hit.origin.pid, said)
        if rank is not None and rank >= MAX_RANK:
            rank = None
        hits.append(replace(hit, origin=replace(hit.origin, rank=rank), count=entry.count, order=order))
    return hits


def _exits(scans: Sequence[SourceScan], who: Who) -> list[Exit]:
    exits: dict[tuple[object, ...], Exit] = {}
    for scan in scans:
        for entry in scan.exits:
            exits.setdefault((entry.rank, entry.pid, entry.origin.attempt, entry.code), entry)
            if entry.first:
                exits[entry.rank, entry.pid, entry.origin.attempt, entry.code] = entry
        for f in scan.found:
            for extra in _exits_of(f, scan, who):
                same = [
                    e
                    for e in exits.values()
                    if (extra.rank is not None and e.rank == extra.rank)
                    or (extra.pid is not None and e.pid == extra.pid)
                ]
                if not same:
                    exits[extra.rank, extra.pid, extra.origin.attempt, extra.code] = extra
    return list(exits.values())


SIGNALS = {
    "Killed": 9,
    "Terminated": 15,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Out Of Memory": 9,
    "Floating point exception": 8,
}


def _exits_of(entry: Found, scan: SourceScan, who: Who) -> Iterable[Exit]:
    hit = entry.hit
    fields = hit.fields
    if hit.code == "LOG201":
        local, pid = int(fields["lr"]), int(fields["pid"])
        rank = who.rank(scan.name, (None, local, None, None), pid)
        yield Exit(hit.origin, rank, local, hit.origin.host, pid, int(fields["code"]), "torchrun", True)
    elif hit.code == "LOG215":
        code = int(fields["code"]) if "code" in fields else -SIGNALS.get(fields.get("sig", ""), 0)
        for task in _range(fields.get("tasks", "")):
            rank = task if who.tasks_are_ranks else None
            yield Exit(
                hit.origin, rank, None, fields.get("host"), None, code, "srun", False, fields.get("sig", "")
            )
    elif hit.code == "LOG216" and "rank" in fields:
        yield Exit(
            hit.origin,
            int(fields["rank"]),
            None,
            fields.get("host"),
            int(fields["pid"]),
            -int(fields["n"]),
            "mpirun",
            True,
        )


def _range(text: str) -> list[int]:
    """The numbers of `0,3-5`."""
    numbers: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            numbers += range(int(low), min(int(high) if high.isdigit() else int(low), int(low) + 4096) + 1)
    return numbers


def _job(scans: Sequence[SourceScan], hits: Sequence[Hit], exits: Sequence[Exit], who: Who) -> JobShape:
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
        buses=_buses(scans, who),
        nodes=max(
            (int(m.fields["nodes"]) for s in scans for m in s.marked if "nodes" in m.fields), default=None
        ),
        restarts=max((s.attempts + s.path_attempt for s in scans), default=0),
        torch=versions[-1] if versions else None,
        nccl=nccl,
        launcher="torchrun" if any(e.reporter == "torchrun" for e in exits) else None,
    )


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


def _done(scans: Sequence[SourceScan], who: Who) -> set[int]:
    marks = ((s, m) for s in scans for m in s.marked if m.code == markers.DONE)
    return {r for s, m in marks if (r := who.rank(s.name, m.key, m.origin.pid)) is not None}


def _steps(scans: Sequence[SourceScan], who: Who) -> list[StepPoint]:
    merged: dict[int | None, list[StepPoint]] = {}
    for scan in scans:
        for key, points in scan.steps.items():
            rank = who.rank(scan.name, key)
            own = merged.setdefault(rank, [])
            own += [replace(p, rank=rank) for p in points]
    for points in merged.values():
        thin(points)
    return [p for points in merged.values() for p in points]


def _nccl_seconds(scans: Sequence[SourceScan], who: Who) -> dict[int, float]:
    """Rank -> how long its NCCL kernels ran, by the rows of torch's profiler."""
    found: dict[int, float] = {}
    for scan in scans:
        for mark in scan.marked:
            if mark.code == markers.PROFILED and (rank := who.rank(scan.name, mark.key)) is not None:
                found[rank] = found.get(rank, 0.0) + kernel_seconds(mark.text)
    return found


def _last_lines(scans: Sequence[SourceScan], who: Who) -> list[LastLine]:
    last: dict[int, LastLine] = {}
    for scan in scans:
        for key, seen in scan.seen.items():
            rank = who.rank(scan.name, key)
            if rank is None or rank >= MAX_RANK:
                continue
            old = last.get(rank)
            count = seen.lines + (old.seen if old else 0)
            newer = old is None or old.origin.file == scan.name or _later(seen.origin, old.origin)
            text, origin = (seen.text, seen.origin) if newer or old is None else (old.text, old.origin)
            own = seen.own if newer or old is None else old.own
            last[rank] = LastLine(
                rank, text, replace(origin, rank=rank), count, own or (old.own if old else "")
            )
    return [last[r] for r in sorted(last)]


def _later(new: Origin, old: Origin) -> bool:
    if new.time is not None and old.time is not None:
        return new.time >= old.time
    return new.stream != "stderr"


def _stacks(scans: Sequence[SourceScan], who: Who) -> list[ThreadStack]:
    found = []
    for scan in scans:
        for key, stack in scan.stacks:
            rank = who.rank(scan.name, key, stack.pid)
            if rank is None and (said := re.search(r"(?:local[-_]rank|RANK|rank)[= ](\d+)", stack.command)):
                rank = int(said[1])
            found.append(replace(stack, rank=rank, origin=replace(stack.origin, rank=rank)))
    return found


def _with_call_sites(hits: list[Hit], scans: Sequence[SourceScan], who: Who) -> list[Hit]:
    """Give timed-out collectives the frames that torch, or a stray stack, shows of their rank."""
    sites: dict[int, list[Frame]] = {}
    for scan in scans:
        for mark in scan.marked:
            if (
                mark.code in (markers.CALL_SITE, markers.FRAME)
                and (rank := who.rank(scan.name, mark.key, mark.origin.pid)) is not None
            ):
                frames = sites.setdefault(rank, [])
                if len(frames) < 64:
                    frames.insert(0, mark.frames[0]) if mark.code == markers.CALL_SITE else frames.append(
                        mark.frames[0]
                    )
    if not sites:
        return hits
    return [
        replace(h, frames=tuple(sites[h.origin.rank]))
        if h.code in TIMED_OUT and not h.frames and h.origin.rank in sites
        else h
        for h in hits
    ]
