"""Small readings of the storage facts that several checks share."""

from __future__ import annotations

import posixpath

from fsdp_doctor.findings import Finding, skip
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.storage import CheckpointPath, Mount, Space, Storage

NO_CHECKPOINT = "no checkpoint folder was named"
NAME_IT = "name it with --ckpt DIR"


def no_checkpoint() -> Finding:
    """The skip of every check that judges the checkpoint folder."""
    return skip(NO_CHECKPOINT, enable=NAME_IT)


def described(mount: Mount | None) -> str:
    """The mount in words, such as "xfs /dev/md0 at /scratch"."""
    return (
        f"{mount.fstype} {mount.source} at {mount.point}" if mount is not None else "an unknown file system"
    )


def space_of(storage: Storage, path: str) -> Space | None:
    """The space of a path: its own answer, or one for any path on the same mount."""
    if path in storage.spaces:
        return storage.spaces[path]
    mount = storage.mount_of(path)
    if mount is None:
        return None
    if mount.point in storage.spaces:
        return storage.spaces[mount.point]
    return next((s for p, s in sorted(storage.spaces.items()) if storage.mount_of(p) is mount), None)


def absolute(path: str, home: str | None) -> str | None:
    """A folder of an environment variable with its `~` resolved; None for what cannot be."""
    path = path.strip()
    if path == "~" or path.startswith("~/"):
        path = f"{home}{path[1:]}" if home else path
    return posixpath.normpath(path) if path.startswith("/") else None


def checkpoint_of(facts: Facts) -> CheckpointPath | None:
    """The checkpoint folder, if one was named."""
    return facts[Storage].checkpoint
