"""The checkpoint folder as the hosts of a job see it."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.ranks._groups import machines, named, split, subject
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.rank_set import RankCheckpoint, RankDigest, RankSet
from fsdp_doctor.tables.filesystems import NODE_LOCAL
from fsdp_doctor.tables.rank_facts import SIZE_DIFFERENCE
from fsdp_doctor.tables.units import size

SHARED = Fix("Mount one file system on every host and save there (NFS, Lustre, GPFS, FSx, …)")


def _of(firsts: tuple[RankDigest, ...]) -> dict[int, RankCheckpoint]:
    return {r.rank: r.checkpoint for r in firsts if r.checkpoint is not None}


def _no_folder(firsts: tuple[RankDigest, ...]) -> Finding | None:
    if not _of(firsts):
        return skip("no checkpoint folder was named", enable="name it with --ckpt DIR")
    if len(firsts) < 2:
        return ok("all ranks are on one host")
    if len(_of(firsts)) < 2:
        return skip("fewer than two hosts say where their checkpoint folder is")
    return None


def _kind(found: RankCheckpoint) -> str | None:
    if found.fstype is None:
        return None
    return f"{found.fstype} {found.source}" if found.source else found.fstype


@check("RNK070", Row.SAVE, needs=(RankSet,), tags=("ranks", "checkpoint"))
def folder_not_shared(facts: Facts, options: Options) -> Iterator[Finding]:
    """The checkpoint folder is not the same file system on all hosts.

    What: each host writes a small file into the folder of --ckpt and looks for those of the others. Where
    that was not done (a recording), compares type, source and size of the file system, and names local
    ones.
    Why: every rank saves its shards where it runs. The save succeeds; the load finds the metadata and the
    shards of one host only, and fails, or waits for files that never come.
    Fix: save to a file system that all hosts mount.
    Sources: PyTorch documentation, distributed checkpoint, FileSystemWriter.
    """
    firsts = machines(facts[RankSet].ranks)
    no_folder = _no_folder(firsts)
    if no_folder is not None:
        yield no_folder
        return
    folders = _of(firsts)
    path = next(iter(folders.values())).path
    asked = [r for r in firsts if r.rank in folders]
    blind = _blind(asked)
    if blind:
        told = "; ".join(
            f"{source.host} does not see the file of {', '.join(hosts)}" for source, hosts in blind
        )
        kinds = split(asked, lambda r: _kind(folders[r.rank]))
        yield fail(
            f"{path} is not shared: {told}" + (f" ({kinds.words()})" if kinds is not None else ""),
            "one file system that every host mounts",
            subject=_about([source for source, _ in blind], path),
            fix=SHARED,
        )
        return
    seen = [r for r in asked if folders[r.rank].sentinels]
    if len(seen) == len(asked):
        yield ok(f"{len(asked)} hosts see each other's files in {path}")
        return
    yield from _compared(asked, folders, path)


def _about(ranks: list[RankDigest], path: str) -> Subject:
    where = subject(ranks)
    return Subject(host=where.host, rank=where.rank, path=path)


def _blind(asked: list[RankDigest]) -> list[tuple[RankDigest, list[str]]]:
    """Hosts with those whose file they should see and do not. A host that sees its own has written one."""
    writers = {r.host for r in asked if r.checkpoint and r.host and r.host in (r.checkpoint.sentinels or ())}
    found = []
    for r in asked:
        sentinels = r.checkpoint.sentinels if r.checkpoint else None
        unseen = sorted(writers - set(sentinels)) if sentinels is not None else []
        if unseen:
            found.append((r, unseen))
    return found


def _compared(asked: list[RankDigest], folders: dict[int, RankCheckpoint], path: str) -> Iterator[Finding]:
    """What type, source and size of the file systems say."""
    types = split(asked, lambda r: folders[r.rank].fstype)
    kinds = split(asked, lambda r: _kind(folders[r.rank]))
    local = [r for r in asked if folders[r.rank].fstype in NODE_LOCAL]
    known = [r for r in asked if folders[r.rank].fstype is not None]
    totals = split(asked, lambda r: folders[r.rank].total)
    if types is not None and kinds is not None:
        yield fail(
            f"{path} is on different file systems: {kinds.words()}",
            "one file system that every host mounts",
            subject=_about(local or list(types.odd), path),
            fix=SHARED,
        )
    elif len(local) > 1:
        fstype = folders[local[0].rank].fstype
        yield fail(
            f"{path} is on {fstype}, which each host has for itself: {named(local)}",
            "one file system that every host mounts",
            subject=_about(local, path),
            fix=SHARED,
        )
    elif kinds is not None and totals is not None and _apart([v for v, _ in totals.groups]):
        yield warn(
            f"{path} has different sources and sizes: {kinds.words()}; {totals.words(size)}",
            "one file system that every host mounts",
            subject=_about(list(kinds.odd), path),
            fix=SHARED,
        )
    elif len(known) < 2:
        yield skip("fewer than two hosts say which file system their checkpoint folder is on")
    else:
        yield ok(f"{path} is on {_kind(folders[known[0].rank])}")


def _apart(totals: list[int]) -> bool:
    return max(totals) - min(totals) > SIZE_DIFFERENCE * max(totals)


@check("RNK071", Row.SAVE, needs=(RankSet,), tags=("ranks", "checkpoint"))
def folder_missing_somewhere(facts: Facts, options: Options) -> Iterator[Finding]:
    """The checkpoint folder is there on some hosts only.

    What: compares whether the folder of --ckpt exists on each host.
    Why: on the others it is created on their own disk, or the save fails there: a mount that did not come
    up on one node is the usual cause.
    Fix: mount the file system on the named hosts.
    Sources: PyTorch documentation, distributed checkpoint, FileSystemWriter.
    """
    firsts = machines(facts[RankSet].ranks)
    no_folder = _no_folder(firsts)
    if no_folder is not None:
        yield no_folder
        return
    folders = _of(firsts)
    there = [r for r in firsts if r.rank in folders and folders[r.rank].exists]
    absent = [r for r in firsts if r.rank in folders and folders[r.rank].exists is False]
    path = next(iter(folders.values())).path
    if there and absent:
        yield fail(
            f"{path} does not exist for {named(absent)}; it does for {named(there)}",
            "the folder on every host",
            subject=_about(absent, path),
            fix=Fix("Mount the file system on the named hosts"),
        )
    elif len(there) + len(absent) < 2:
        yield skip("fewer than two hosts say whether the folder exists")
    else:
        yield ok(
            f"{path} {'exists' if there else 'exists nowhere yet, and the run can make it,'} on all hosts"
        )
