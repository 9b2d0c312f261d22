"""Kinds of file systems by how a checkpoint or a cache fares on them."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_doctor.tables.units import GIB, MIB, TIB

CHECKED_ON = "2026-09-14"

NODE_LOCAL = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "bcachefs",
        "reiserfs",
        "jfs",
        "vfat",
        "msdos",
        "exfat",
        "ntfs",
        "ntfs3",
        "fuseblk",
        "tmpfs",
        "ramfs",
        "overlay",
        "aufs",
        "fuse.fuse-overlayfs",
        "fuse.mergerfs",
    )
)
"""One machine's own. A block device that several nodes mount has gfs2 or ocfs2 instead."""
MEMORY = frozenset({"tmpfs", "ramfs"})
CONTAINER_LAYER = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})
READ_ONLY = frozenset({"squashfs", "fuse.squashfuse", "iso9660", "erofs", "cramfs", "udf"})
NFS = frozenset({"nfs", "nfs4"})
PARALLEL = frozenset(
    (
        "lustre",
        "gpfs",
        "beegfs",
        "wekafs",
        "ceph",
        "panfs",
        "pvfs2",
        "orangefs",
        "gfs2",
        "ocfs2",
        "daos",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.3fs",
        "fuse.hf3fs",
        "fuse.dfuse",
    )
)
"""Shared, and made for many writers."""
SMB = frozenset({"cifs", "smb2", "smb3", "smbfs"})
GUEST_SHARE = frozenset({"9p", "vboxsf", "fuse.vmhgfs-fuse", "drvfs"})
"""A folder of the host in a virtual machine or in WSL."""
SMALL_FILES: Mapping[str, int] = {"vfat": 4 * GIB, "msdos": 4 * GIB, "fat": 4 * GIB}
"""Largest file."""
NTFS = frozenset({"ntfs", "ntfs3", "fuseblk", "fuse.ntfs-3g"})

OBJECT_STORES: Mapping[str, str] = {
    "s3fs": "s3fs: a rename is a copy and a delete of every object",
    "goofys": "goofys: files are written in one sequential pass and cannot be changed afterwards",
    "gcsfuse": "Cloud Storage FUSE: a rename of a folder copies each object in a flat bucket",
    "blobfuse": "BlobFuse: a rename is a copy in accounts without a hierarchical namespace",
    "blobfuse2": "BlobFuse2: a rename is a copy in accounts without a hierarchical namespace",
    "rclone": "rclone mount: without --vfs-cache-mode writes a file cannot be written out of order",
    "mountpoint-s3": "Mountpoint for Amazon S3: objects of general-purpose buckets cannot be renamed",
    "mount-s3": "Mountpoint for Amazon S3: objects of general-purpose buckets cannot be renamed",
    "geesefs": "GeeseFS: a rename is a copy per object",
    "s3ql": "S3QL: one machine may mount it at a time",
    "riofs": "RioFS: a rename is a copy and a delete",
    "davfs": "davfs2: a file is uploaded when it is closed",
    "ossfs": "ossfs: a rename is a copy and a delete of every object",
    "cosfs": "cosfs: a rename is a copy and a delete of every object",
    "obsfs": "obsfs: a rename is a copy in object buckets",
}
"""Programs that show an object store as a folder: in the file-system type (fuse.NAME) or in its source."""
SSHFS = "sshfs"

CHECKPOINT_FACTOR = 3
"""Parameters and Adam's two moments in the parameters' precision: the least a full checkpoint takes."""
CHECKPOINT_MINIMUM = 1 * GIB
"""A model worth sharding makes no smaller checkpoint: 100 million parameters with Adam are 1.2 GB."""
USED_PERCENT = 95
USED_PERCENT_LARGE = 10 * TIB
"""With this much left, a percentage says nothing."""
INODES_MARGIN = 10
"""Saves that should fit before inodes run out."""
INODES_LOW = 10_000
TEMPORARY_LOW = 1 * GIB
TEMPORARY_FULL = 16 * MIB
ROOT_LOW = 500 * MIB
CACHE_LOW = 1 * GIB
NFS_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "local_lock=posix")
"""Options with which the client keeps locks to itself; see nfs(5)."""
NFS_TRANSFER_SMALL = 64 * 1024
"""rsize and wsize; servers and clients of the last decade agree on 1 MiB."""

COMPILE_CACHES: tuple[str, ...] = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
"""Folders that hold shared objects which are mapped after they were built."""
DATA_CACHES: tuple[str, ...] = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "XDG_CACHE_HOME",
)
MOUNT_PARENTS = frozenset(
    {"/", "/mnt", "/media", "/data", "/scratch", "/shared", "/lustre", "/gpfs", "/fsx", "/efs"}
)
"""Folders below which file systems are usually mounted: a missing one there is often not mounted."""


def is_network(fstype: str) -> bool:
    """Whether another machine serves it."""
    return (
        fstype in NFS
        or fstype in PARALLEL
        or fstype in SMB
        or object_store(fstype, "") is not None
        or fstype.endswith(SSHFS)
    )


def object_store(fstype: str, source: str) -> str | None:
    """The entry of `OBJECT_STORES` that a FUSE mount belongs to, or None."""
    if not fstype.startswith("fuse") and fstype not in OBJECT_STORES:
        return None
    kind = fstype.removeprefix("fuse.")
    program = source.split(":")[0].rsplit("/", 1)[-1].lower()
    return next((name for name in (kind, program) if name in OBJECT_STORES), None)
