"""The checkpoint folder: is it there, does it answer, may it be written."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator

from fsdp_doctor.checks.storage._reading import checkpoint_of, described, no_checkpoint
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.storage import CheckpointPath, Storage
from fsdp_doctor.tables.filesystems import MOUNT_PARENTS, READ_ONLY


@check("STO001", Row.SAVE, needs=(Storage,), uses=(Host,), tags=("checkpoint",))
def cannot_be_written(facts: Facts, options: Options) -> Iterator[Finding]:
    """The checkpoint folder cannot be written

    What: Asks whether the folder of --ckpt answers, is a folder, lies on a mount that may be written, and
        whether this user may write it. A folder that is only missing is made by most savers; one whose
        file system seems not to be mounted is a warning.
    Why: The first save comes hours into the run, and then ends it: with "Permission denied", "Read-only
        file system" or "No such file or directory" on one rank, while the others wait in a collective.
        A file server that does not answer blocks the rank in the kernel.
    Fix: Make the folder, mount its file system for writing, give it to the user of the job, or name
        another one.
    Sources: open(2), EACCES, EROFS and ENOENT; PyTorch documentation, distributed checkpoint.
    """
    ckpt = checkpoint_of(facts)
    if ckpt is None:
        yield no_checkpoint()
        return
    subject, mount = Subject(path=ckpt.path), ckpt.mount
    if ckpt.error:
        yield fail(
            f"{ckpt.path}: {ckpt.error}",
            "a checkpoint folder that answers",
            subject=subject,
            fix=Fix(
                f"Look whether the file server of {described(mount)} is up and may be reached",
                f"timeout 10 stat {shlex.quote(ckpt.path)}",
                owner=Owner.ADMIN,
            ),
        )
    elif ckpt.exists and ckpt.is_dir is False:
        text = f"{ckpt.path} is a file"
        fix = Fix("Name a folder with --ckpt, or move the file away")
        yield fail(text, "a folder for checkpoints", subject=subject, fix=fix)
    elif mount is not None and ("ro" in mount.options or mount.fstype in READ_ONLY):
        yield fail(
            f"{ckpt.path} is on a read-only file system ({described(mount)})",
            "a file system mounted for writing (rw)",
            subject=subject,
            fix=Fix(
                "Name a folder on another file system, or have this one mounted for writing; after an "
                "error the kernel turns a file system read-only: look in its log",
                f"findmnt -T {shlex.quote(ckpt.path)}",
                owner=Owner.ADMIN,
            ),
        )
    elif ckpt.writable is False:
        yield _forbidden(ckpt, facts.find(Host))
    elif ckpt.exists is False:
        yield _missing(ckpt)
    elif ckpt.exists is None:
        yield skip(f"nobody could look at {ckpt.path}", enable="run on the machine itself", subject=subject)
    else:
        asked = "" if ckpt.writable else "; whether this user may write it was not asked"
        yield ok(f"{ckpt.path} is a folder on {described(mount)}{asked}", subject=subject)


def _forbidden(ckpt: CheckpointPath, host: Host | None) -> Finding:
    where = ckpt.path if ckpt.exists else (ckpt.nearest or ckpt.path)
    who = f"uid {host.uid}" if host is not None and host.uid is not None else "this user"
    return fail(
        f"{who} may not write {where}" + ("" if ckpt.exists else f", so that {ckpt.path} cannot be made"),
        "write permission for the user that runs the ranks",
        subject=Subject(path=ckpt.path),
        fix=Fix(
            "Give the folder to that user, or name another one; on NFS look for root_squash",
            f"sudo chown $(id -u):$(id -g) {shlex.quote(where)}",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
    )


def _missing(ckpt: CheckpointPath) -> Finding:
    """A missing folder: to be made, or below a mount that is not there."""
    parent = posixpath.dirname(ckpt.path.rstrip("/")) or "/"
    nearest = ckpt.nearest or "/"
    subject = Subject(path=ckpt.path)
    fix = Fix("Mount its file system, or make the folder", f"mkdir -p {shlex.quote(ckpt.path)}")
    if nearest == parent and nearest not in MOUNT_PARENTS:
        return info(f"{ckpt.path} does not exist yet; {nearest} does", subject=subject, fix=fix)
    return warn(
        f"{ckpt.path} does not exist; the nearest folder above it is {nearest} on {described(ckpt.mount)}",
        "the folder, or the mount that should hold it",
        subject=subject,
        fix=fix,
        why="If its file system is not mounted, checkpoints go to the disk below the mount point, where "
        "other nodes do not see them and a later mount hides them.",
    )
