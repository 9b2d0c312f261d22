"""Mounts, free space and the checkpoint folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from fsdp_doctor.facts.source import PathFacts, Source, text
from fsdp_doctor.subjects.fact import Known, Unknown
from fsdp_doctor.subjects.storage import CheckpointPath, Mount, Space, Storage

MOUNT_LIMIT = 16384
ESCAPE = re.compile(r"\\([0-3][0-7]{2})")


def storage(source: Source, checkpoint: str | None = None) -> Known[Storage] | Unknown:
    """Mounts and space; `checkpoint` is a path on the judged machine."""
    if checkpoint is not None and checkpoint.startswith("/"):
        checkpoint = posixpath.normpath(checkpoint)
    # Asked first: the space of the folder is part of the answer.
    facts = None if checkpoint is None else source.path_facts(checkpoint)
    answer = source.statvfs()
    figures = {} if isinstance(answer, Unknown) else answer.value
    mounts = mount_table(source)
    if not mounts and not figures:
        reason = answer.reason if isinstance(answer, Unknown) else "no path answered"
        return Unknown(f"neither mounts nor free space could be read: {reason}")
    spaces = {path: s for path, f in figures.items() if (s := space(path, f)) is not None}
    value = Storage(mounts=mounts, spaces=spaces)
    if checkpoint is not None and facts is not None:
        value = Storage(mounts, spaces, checkpoint_path(value, checkpoint, facts))
    return Known(value, "/proc/self/mountinfo and statvfs")


def mount_table(source: Source) -> tuple[Mount, ...]:
    """Mounts in the order they were made."""
    lines = (text(source, "/proc/self/mountinfo") or "").splitlines()[:MOUNT_LIMIT]
    found = [m for line in lines if (m := _mountinfo_row(line)) is not None]
    if found:
        return tuple(found)
    for path in ("/proc/self/mounts", "/proc/mounts"):
        lines = (text(source, path) or "").splitlines()[:MOUNT_LIMIT]
        found = [m for line in lines if (m := _mounts_row(line)) is not None]
        if found:
            return tuple(found)
    return ()


def _mountinfo_row(line: str) -> Mount | None:
    """A row "id parent device root POINT OPTIONS fields… - TYPE SOURCE OPTIONS"."""
    left, mark, right = line.partition(" - ")
    place, kind = left.split(), right.split(" ")
    if not mark or len(place) < 6 or len(kind) < 2:
        return None
    options = (*place[5].split(","), *(kind[2].split(",") if len(kind) > 2 else ()))
    return Mount(_plain(place[4]), kind[0], _plain(kind[1]), _options(options))


def _mounts_row(line: str) -> Mount | None:
    words = line.split()
    if len(words) < 4:
        return None
    return Mount(_plain(words[1]), words[2], _plain(words[0]), _options(tuple(words[3].split(","))))


def _options(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_plain(o) for o in dict.fromkeys(options) if o)


def _plain(word: str) -> str:
    r"""A word with the kernel's octal escapes resolved, such as \040 for a blank."""
    if "\\" not in word:
        return word
    raw = ESCAPE.sub(lambda m: chr(int(m.group(1), 8)), word)
    if all(ord(c) < 256 for c in raw):
        return raw.encode("latin-1").decode("utf-8", "replace")
    return raw


def space(path: str, figures: Mapping[str, int]) -> Space | None:
    """The space of a path; None where the answer lacks blocks or makes no sense."""
    unit, blocks, free = (figures.get(k) for k in ("f_frsize", "f_blocks", "f_bfree"))
    available = figures.get("f_bavail", free)
    if unit is None or blocks is None or free is None or available is None:
        return None
    if min(unit, blocks, free) < 0:
        return None
    return Space(
        path=path,
        total=unit * blocks,
        free=unit * free,
        available=unit * max(available, 0),
        inodes=max(figures.get("f_files", 0), 0),
        inodes_available=max(figures.get("f_favail", figures.get("f_ffree", 0)), 0),
    )


def checkpoint_path(found: Storage, path: str, facts: PathFacts) -> CheckpointPath:
    """The folder to save to, on the mount and with the space of what exists of it."""
    place = facts.real or facts.nearest or path
    if facts.exists is None and facts.nearest:
        # Nobody looked below `nearest`: a mount may well begin there.
        place = f"{place.rstrip('/')}/{path[len(facts.nearest) :].lstrip('/')}"
    mount = found.mount_of(place)
    return CheckpointPath(
        path=path,
        exists=facts.exists,
        nearest=facts.nearest,
        is_dir=facts.is_dir,
        writable=facts.writable,
        mount=mount,
        space=_space_of(found, mount, path, facts),
        error=facts.error,
    )


def _space_of(found: Storage, mount: Mount | None, path: str, facts: PathFacts) -> Space | None:
    """The answer for the path or what exists of it, else for any path on the same mount."""
    for place in (path, facts.nearest, facts.real):
        if place is None or place not in found.spaces:
            continue
        # Where nobody looked below `nearest`, its answer holds only if no mount lies between.
        if place == path or facts.exists is not None or found.mount_of(place) is mount:
            return found.spaces[place]
    same = (s for p, s in sorted(found.spaces.items()) if mount and found.mount_of(p) is mount)
    return next(same, None)
