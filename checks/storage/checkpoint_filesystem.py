"""Kinds of file systems that lose, damage or refuse checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.storage._reading import checkpoint_of, described, no_checkpoint
from fsdp_doctor.engine.job import USES, node_count
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.storage import Mount, Storage
from fsdp_doctor.tables.filesystems import (
    CONTAINER_LAYER,
    GUEST_SHARE,
    MEMORY,
    NFS,
    NFS_LOCAL_LOCKS,
    NFS_TRANSFER_SMALL,
    NODE_LOCAL,
    NTFS,
    OBJECT_STORES,
    SMALL_FILES,
    SMB,
    SSHFS,
    object_store,
)
from fsdp_doctor.tables.units import size

ELSEWHERE = Fix("Save to a file system that outlives the job and that all nodes share", risk=Risk.SAFE)


def _mount(facts: Facts) -> Mount | Finding:
    """The checkpoint folder's mount, or the skip that says why there is none to judge."""
    ckpt = checkpoint_of(facts)
    if ckpt is None:
        return no_checkpoint()
    return ckpt.mount or skip(f"the mount of {ckpt.path} is not known", enable="/proc/self/mountinfo")


def _path(facts: Facts) -> str:
    ckpt = checkpoint_of(facts)
    return ckpt.path if ckpt is not None else ""


@check("STO004", Row.SAVE, needs=(Storage,), tags=("checkpoint",))
def lost_on_exit(facts: Facts, options: Options) -> Iterator[Finding]:
    """Checkpoints are written where they do not outlive the job

    What: Looks whether the folder of --ckpt lies in memory (tmpfs, ramfs) or in a container's own layer
        (overlay).
    Why: A tmpfs is gone with the machine or container, and what is saved there takes host memory and
        counts against the container's limit. The container's layer is deleted with the container. Both
        are lost in exactly the cases that a checkpoint is for.
    Fix: Mount a volume or a shared file system and save there.
    Sources: Linux kernel documentation, tmpfs; docker documentation, storage drivers and volumes.
    """
    mount = _mount(facts)
    if isinstance(mount, Finding):
        yield mount
        return
    kind = "host memory" if mount.fstype in MEMORY else "the container's own layer"
    if mount.fstype in MEMORY or mount.fstype in CONTAINER_LAYER:
        yield warn(
            f"{_path(facts)} is in {kind} ({described(mount)})",
            "a disk, a volume or a shared file system",
            subject=Subject(path=_path(facts)),
            fix=ELSEWHERE,
        )
    else:
        yield ok(described(mount))


@check("STO005", Row.SAVE, needs=(Storage,), tags=("checkpoint",))
def object_store_mount(facts: Facts, options: Options) -> Iterator[Finding]:
    """Checkpoints go through a mounted object store

    What: Looks whether the folder of --ckpt is an object store shown as a folder by a FUSE program (s3fs,
        gcsfuse, goofys, blobfuse, rclone, Mountpoint for S3 and the like), or sshfs.
    Why: Such mounts have no atomic rename and often no writing in the middle of a file. Savers write to a
        temporary name and rename it, so that a crash leaves half a checkpoint under the final name or
        the save fails with "Operation not permitted".
    Fix: Save to a disk or shared file system and upload after the save, or write with a storage writer
        for the object store (torch.distributed.checkpoint with fsspec, s3torchconnector, gcsfs).
    Sources: documentation of s3fs-fuse, gcsfuse, goofys, BlobFuse, rclone mount and Mountpoint for Amazon
        S3 on their limits; PyTorch documentation, distributed checkpoint, fsspec.
    """
    mount = _mount(facts)
    if isinstance(mount, Finding):
        yield mount
        return
    name = object_store(mount.fstype, mount.source)
    subject = Subject(path=_path(facts))
    if name is not None:
        yield warn(
            f"{_path(facts)} is an object store mounted as {described(mount)}: {OBJECT_STORES[name]}",
            "a POSIX file system, or a storage writer for the object store",
            subject=subject,
            fix=Fix(
                "Save to a disk or shared file system and upload afterwards, or save with an fsspec writer"
            ),
        )
    elif mount.fstype.endswith(SSHFS):
        yield warn(
            f"{_path(facts)} is mounted by sshfs ({described(mount)})",
            "a disk or a shared file system",
            subject=subject,
            fix=ELSEWHERE,
            why="One encrypted connection carries every rank's shard, and a break of it looks like a hang.",
        )
    elif mount.fstype in ("fuse", "fuse.unknown"):
        found = f"{_path(facts)} is mounted by a FUSE program that does not give its name ({mount.source})"
        yield info(found, expected="a file system with atomic rename", subject=subject)
    else:
        yield ok(described(mount))


@check("STO006", Row.SAVE, needs=(Storage,), tags=("checkpoint", "nfs"))
def nfs_options(facts: Facts, options: Options) -> Iterator[Finding]:
    """NFS mount options put checkpoints at risk

    What: Reads the options of the NFS mount that holds the folder of --ckpt. A soft mount fails; no
        attribute caching, synchronous writes, UDP, small transfers and locks that stay on one node are a
        warning.
    Why: On a soft mount a server that is busy for a minute makes writes fail after they were accepted: the
        error arrives at close, many savers do not look, and the checkpoint is torn without notice. The
        other options make many ranks' writes and lookups slow enough to pass a timeout. With nolock a
        file lock holds on its own node only: two nodes then write one cache or checkpoint file at once.
    Fix: Mount with hard,proto=tcp and let client and server agree on rsize and wsize (1 MiB).
    Sources: nfs(5), soft and hard, sync, noac, rsize and wsize, lock and local_lock.
    """
    mount = _mount(facts)
    if isinstance(mount, Finding):
        yield mount
        return
    if mount.fstype not in NFS:
        yield ok(f"{mount.fstype}, not NFS")
        return
    path, subject = _path(facts), Subject(path=_path(facts))
    fix = Fix(
        "Mount it with hard,proto=tcp and without sync, noac, rsize and wsize",
        f"sudo mount -o remount,hard {mount.point}" if " " not in mount.point else None,
        Risk.NEEDS_ROOT,
        Owner.ADMIN,
    )
    soft = [o for o in mount.options if o in ("soft", "softerr")]
    if soft:
        found = f"{path} is on an NFS mount with the option {soft[0]} ({described(mount)})"
        yield fail(found, "hard", subject=subject, fix=fix)
    slow = [
        o
        for o in mount.options
        if o in ("sync", "noac", "actimeo=0", "proto=udp", "udp", "vers=2")
        or (o.startswith(("rsize=", "wsize=")) and _small(o.partition("=")[2]))
    ]
    if slow:
        found = f"{path} is on an NFS mount with {', '.join(slow)} ({described(mount)})"
        yield warn(
            found, "hard,proto=tcp with rsize and wsize of 1 MiB", subject=subject, fix=fix, row=Row.SLOW
        )
    loose = [o for o in mount.options if o in NFS_LOCAL_LOCKS]
    if loose:
        yield warn(
            f"{path} is on an NFS mount with {', '.join(loose)}: file locks hold on this node only "
            f"({described(mount)})",
            "locks that the server keeps",
            subject=subject,
            fix=Fix("Mount it without nolock and local_lock", None, Risk.NEEDS_ROOT, Owner.ADMIN),
        )
    if not soft and not slow and not loose:
        version = next((o for o in mount.options if o.startswith(("vers=", "nfsvers="))), mount.fstype)
        yield ok(f"{described(mount)}, {version}, hard")


def _small(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12 and int(text) < NFS_TRANSFER_SMALL


@check("STO007", Row.SAVE, needs=(Storage,), tags=("checkpoint",))
def unsuited(facts: Facts, options: Options) -> Iterator[Finding]:
    """The file system is not made for checkpoints

    What: Looks whether the folder of --ckpt lies on FAT (files up to 4 GiB), NTFS, an SMB share or a folder
        of the host that a virtual machine or WSL shares.
    Why: On FAT a shard above 4 GiB ends with "File too large". NTFS, SMB and shared folders of a host are
        slow with large files, and lock and rename differently from what savers expect.
    Fix: Save to ext4, XFS or a shared file system made for clusters.
    Sources: Linux kernel documentation, vfat, ntfs3, cifs, 9p; Microsoft documentation on WSL file systems.
    """
    mount = _mount(facts)
    if isinstance(mount, Finding):
        yield mount
        return
    path, subject = _path(facts), Subject(path=_path(facts))
    if mount.fstype in SMALL_FILES:
        limit = size(SMALL_FILES[mount.fstype])
        found = f"{path} is on {described(mount)}, whose files end at {limit}"
        yield fail(found, "a file system with large files", subject=subject, fix=ELSEWHERE)
    elif mount.fstype in NTFS | SMB | GUEST_SHARE:
        found = f"{path} is on {described(mount)}"
        yield warn(found, "ext4, XFS or a cluster's shared file system", subject=subject, fix=ELSEWHERE)
    else:
        yield ok(described(mount))


@check("STO008", Row.SAVE, needs=(Storage,), uses=USES, tags=("checkpoint", "multi-node"))
def node_local(facts: Facts, options: Options) -> Iterator[Finding]:
    """Checkpoints of a job on several nodes go to each node's own disk

    What: In a job of several nodes, looks whether the folder of --ckpt lies on a file system that only this
        node has (ext4, XFS, Btrfs, ZFS, tmpfs, a container's layer).
    Why: Each node writes its own shards where the others cannot see them. The save succeeds; the load finds
        the metadata on the first node only and shards missing, on a new set of nodes all the more.
    Fix: Save to a shared file system (NFS, Lustre, GPFS, BeeGFS, Weka, CephFS, FSx), or copy every node's
        part to one place after each save.
    Sources: PyTorch documentation, distributed checkpoint, FileSystemWriter.
    """
    mount = _mount(facts)
    if isinstance(mount, Finding):
        yield mount
        return
    nodes = node_count(facts, options)
    if nodes is None:
        yield skip("nothing says on how many nodes the job runs", enable="give the launch command after --")
    elif nodes <= 1:
        yield ok("one node")
    elif mount.fstype in NODE_LOCAL:
        yield fail(
            f"{_path(facts)} is on {described(mount)}, which only this one of {nodes} nodes has",
            "one file system that every node mounts",
            subject=Subject(path=_path(facts)),
            fix=ELSEWHERE,
        )
    else:
        yield ok(f"{described(mount)} for {nodes} nodes")
