"""What DCP's metadata claims, compared with itself and with the files beside it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

from fsdp_doctor.ckpt.coverage import regions_overlap
from fsdp_doctor.ckpt.dcp_metadata import Metadata
from fsdp_doctor.ckpt.draft import Draft, FileDraft, counted
from fsdp_doctor.ckpt.limits import SPREAD_SECONDS
from fsdp_doctor.subjects.checkpoint import FileRole
from fsdp_doctor.subjects.checkpoint_problem import Harm, ProblemKind

NEWER_SECONDS = 2.0
"""Clocks of several hosts and file servers differ by less, mostly."""
ZIP_MAGIC = b"PK\x03\x04"
NAMED = 16
"""Broken files that get a problem of their own."""
PROBES = 4_000
"""Beginnings of items that are looked at."""


def judge_files(draft: Draft, folder: str, metadata: Iterable[Metadata]) -> set[str]:
    """Missing, short, foreign, stale and younger files; items that claim the same bytes.

    Returns the paths of foreign files, in which nothing is where the metadata says.
    """
    files = [f for f in draft.files if f.part == folder and f.role is FileRole.DATA]
    metas = list(metadata)
    transformed = any(m.transformed for m in metas)
    foreign: set[str] = set()
    if not transformed and draft.read_values:
        for meta in metas:
            foreign |= _foreign(draft, folder, meta)
    broken = [f for f in files if f.referenced and f.path not in foreign and _broken(f)]
    for file in broken[:NAMED]:
        _present(draft, file)
    if len(broken) > NAMED:
        rest = broken[NAMED:]
        draft.problem(
            ProblemKind.FILE_MISSING,
            Harm.BROKEN,
            f"{len(rest)} more data files are missing or too short, such as {rest[0].path}",
            folder,
            bytes=sum((f.needed or 0) - ((f.node.size or 0) if f.node else 0) for f in rest),
        )
    for file in files:
        if file.referenced:
            continue
        if file.node is not None and file.node.size:
            draft.problem(
                ProblemKind.FILE_STALE,
                Harm.NOTE,
                f"{file.path} ({file.node.size} bytes) is not named by the metadata: left by an earlier save",
                file.path,
                bytes=file.node.size,
                rank=file.rank,
            )
    for meta in metas:
        for path, starts, lengths in zip(meta.paths, meta.starts, meta.lengths, strict=True):
            clash = regions_overlap(starts, lengths)
            if clash is not None:
                draft.problem(
                    ProblemKind.REGIONS_OVERLAP,
                    Harm.BROKEN,
                    f"metadata places two items over each other in {path[:200]!a}, at bytes {clash[0]} and "
                    f"{clash[1]}",
                    f"{folder}/{path}" if folder else path,
                )
    bad = foreign | {f.path for f in broken}
    _times(draft, folder, [f for f in files if f.referenced and f.path not in bad])
    return foreign


def _broken(file: FileDraft) -> bool:
    if file.node is None:
        return True
    return file.node.size is not None and file.node.size < (file.needed or 0)


def _present(draft: Draft, file: FileDraft) -> None:
    node, needed = file.node, file.needed or 0
    if node is None:
        keys = _keys_in(draft, file)
        lost = f"; {counted(keys)} {'has a part' if len(keys) == 1 else 'have parts'} in it" if keys else ""
        draft.problem(
            ProblemKind.FILE_MISSING,
            Harm.BROKEN,
            f"{file.path} is missing: metadata places {file.items} items, {needed} bytes, in it{lost}",
            file.path,
            keys,
            bytes=needed,
            rank=file.rank,
        )
    elif node.size is not None and node.size < needed:
        keys = _keys_in(draft, file, beyond=node.size)
        draft.problem(
            ProblemKind.FILE_SHORT,
            Harm.BROKEN,
            f"{file.path} has {node.size} bytes, metadata needs {needed}; {counted(keys)} "
            f"{'has a part' if len(keys) == 1 else 'have parts'} beyond its end",
            file.path,
            keys,
            bytes=needed - node.size,
            rank=file.rank,
        )


def _keys_in(draft: Draft, file: FileDraft, beyond: int = -1) -> list[str]:
    """Keys of tensors with a chunk in this file that ends beyond a byte."""
    index = draft.file(file.path)
    keys = []
    for tensor in draft.tensors.values():
        if tensor.part != file.part:
            continue
        dims = 2 * len(tensor.shape)
        width = dims + 4
        rows = tensor.place
        owners = rows[dims::width]
        if index not in owners:
            continue
        starts, lengths = rows[dims + 1 :: width], rows[dims + 2 :: width]
        if any(o == index and s + n > beyond for o, s, n in zip(owners, starts, lengths, strict=True)):
            keys.append(tensor.key)
    return keys


def _foreign(draft: Draft, folder: str, meta: Metadata) -> set[str]:
    """Every item of DCP is a torch.save archive: look whether one begins where metadata says."""
    foreign: set[str] = set()
    per_file = max(1, PROBES // max(1, len(meta.paths)))
    for path, starts, lengths in zip(meta.paths, meta.starts, meta.lengths, strict=True):
        full = f"{folder}/{path}" if folder else path
        node = draft.nodes.get(full)
        if node is None or not node.regular or node.size is None:
            continue
        ends = map(operator.add, starts, lengths)
        if min(lengths, default=0) > 0 and max(ends, default=0) <= node.size:
            wanted = list(starts)
        else:
            wanted = [s for s, n in zip(starts, lengths, strict=True) if n and s + n <= node.size]
        wanted = wanted if len(wanted) <= per_file else wanted[:: -(-len(wanted) // per_file)]
        wrong = _without_magic(draft, full, wanted)
        if not wrong:
            continue
        foreign.add(full)
        zeros = all(held == bytes(4) for held in wrong.values())
        needed = max(map(int.__add__, starts, lengths))
        sizes = f"; it has {node.size} bytes, metadata needs {needed}" if node.size < needed else ""
        draft.problem(
            ProblemKind.FILE_FOREIGN,
            Harm.BROKEN,
            f"{full} {'was not written whole' if zeros else 'belongs to another save'}: {len(wrong)} of "
            f"{len(wanted)} items looked at do not begin where the metadata says (first at byte {min(wrong)}"
            f"{', zeros' if zeros else ''}){sizes}",
            full,
        )
    return foreign


def _without_magic(draft: Draft, path: str, starts: list[int]) -> dict[int, bytes]:
    """Where no item begins, and what is there."""
    wrong: dict[int, bytes] = {}
    try:
        with draft.store.open(path) as file:
            # Past the buffer, which would be filled anew for every four bytes.
            bare = getattr(file, "raw", file)
            for start in sorted(starts):
                bare.seek(start)
                if (held := bare.read(4)) != ZIP_MAGIC:
                    wrong[start] = held
    except OSError:
        return {}  # noted when files are looked at as such
    return wrong


def _times(draft: Draft, folder: str, files: list[FileDraft]) -> None:
    """Files of one save are written together, and the metadata after them."""
    stamps = sorted(
        (n.modified, f.path) for f in files if (n := f.node) is not None and n.modified is not None and n.size
    )
    if not stamps:
        return
    meta = [
        n.modified
        for f in draft.files
        if f.part == folder and f.role is FileRole.METADATA and f.referenced
        if (n := f.node) is not None and n.modified is not None
    ]
    newer = [p for t, p in stamps if meta and t > max(meta) + NEWER_SECONDS]
    if newer and len(newer) < len(stamps):
        when = max(t for t, _ in stamps) - max(meta)
        draft.problem(
            ProblemKind.FILE_NEWER,
            Harm.DOUBT,
            f"{len(newer)} of {len(stamps)} data files ({', '.join(newer[:4])}) changed up to {when:.0f} s "
            "after the metadata that describes them: they may be of another save",
            newer[0],
        )
        return
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(stamps)]
    if gaps and max(gaps) > SPREAD_SECONDS and max(gaps) > 20 * sorted(gaps)[len(gaps) // 2]:
        at = gaps.index(max(gaps))
        draft.problem(
            ProblemKind.FILE_SPREAD,
            Harm.DOUBT,
            f"data files of one save were written {max(gaps):.0f} s apart: {stamps[at][1]} and "
            f"{stamps[at + 1][1]}",
            stamps[at + 1][1],
        )
