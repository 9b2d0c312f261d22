"""Mounts and free space where training reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `options` joins the mount's and the file system's own."""

    point: str
    fstype: str
    source: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    """statvfs of a path, in bytes and inodes; inodes are 0 of 0 on file systems without a limit."""

    path: str
    total: int
    free: int
    available: int
    """To an ordinary user."""
    inodes: int = 0
    inodes_available: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointPath:
    """The folder that `--ckpt` names, or the nearest existing one above it."""

    path: str
    exists: bool | None
    nearest: str | None = None
    is_dir: bool | None = None
    writable: bool | None = None
    """By this user; None where it was not asked (a recording of another machine)."""
    mount: Mount | None = None
    space: Space | None = None
    error: str | None = None
    """Such as "no answer in 5 s" (a dead NFS server), or the errno text."""


@dataclass(frozen=True, slots=True)
class Storage:
    """`spaces` by path: /, /tmp, /dev/shm, cache folders and the checkpoint folder."""

    mounts: tuple[Mount, ...] = ()
    spaces: Mapping[str, Space] = field(default_factory=dict)
    checkpoint: CheckpointPath | None = None
    """None where no checkpoint folder was named."""

    def mount_of(self, path: str) -> Mount | None:
        """The mount that holds `path`: the longest prefix, the last one mounted there."""
        best: Mount | None = None
        for mount in self.mounts:
            inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
            if inside and (best is None or len(mount.point) >= len(best.point)):
                best = mount
        return best
