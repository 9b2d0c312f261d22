"""Bytes and inodes that are left where checkpoints go."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fsdp_doctor.checks.storage._reading import checkpoint_of, no_checkpoint
from fsdp_doctor.engine.job import USES, local_ranks, node_count
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.storage import Storage
from fsdp_doctor.tables.filesystems import (
    CHECKPOINT_FACTOR,
    CHECKPOINT_MINIMUM,
    INODES_LOW,
    INODES_MARGIN,
    USED_PERCENT,
    USED_PERCENT_LARGE,
)
from fsdp_doctor.tables.units import percent, size


def _fix(path: str) -> Fix:
    return Fix(
        "Delete old checkpoints, keep fewer of them, or name a larger file system",
        f"df -h {shlex.quote(path)}",
    )


@check("STO002", Row.SAVE, needs=(Storage,), uses=USES, tags=("checkpoint", "space"))
def no_space(facts: Facts, options: Options) -> Iterator[Finding]:
    """There is no room for a checkpoint

    What: Compares what an ordinary user may still write where --ckpt points with one full checkpoint:
        parameters and Adam's two moments of the named model, or 1 GiB where none was named. Room for
        only one, or a file system that is 95 per cent full, is a warning.
    Why: A save that runs out of space leaves a torn checkpoint, often after the previous one was deleted;
        the rank that got ENOSPC ends, and the others wait for it until NCCL's timeout.
    Fix: Free space, keep fewer checkpoints, or save elsewhere. Quotas are not visible here: ask for them
        with quota or lfs quota.
    Sources: statvfs(3), f_bavail; PyTorch documentation, distributed checkpoint; imbue (95 %), gpud.
    """
    ckpt = checkpoint_of(facts)
    if ckpt is None:
        yield no_checkpoint()
        return
    space = ckpt.space
    if space is None or space.total <= 0:
        reason = f"the file system of {ckpt.path} does not say how large it is"
        yield skip(reason, enable="an answer of statvfs")
        return
    used = percent(space.total - space.available, space.total)
    found = f"{size(space.available)} of {size(space.total)} free for {ckpt.path} ({used} % used)"
    subject, fix = Subject(path=ckpt.path), _fix(ckpt.path)
    known = options.model_bytes is not None
    one = max((options.model_bytes or 0) * CHECKPOINT_FACTOR, 1) if known else CHECKPOINT_MINIMUM
    of_model = "of this model with Adam's moments " if known else ""
    if space.available < one:
        expected = f"{size(one)} or more: one checkpoint {of_model}takes at least that"
        yield fail(found, expected, subject=subject, fix=fix)
    elif known and space.available < 2 * one:
        expected = f"{size(2 * one)}: a new checkpoint is written before the old one is deleted"
        yield warn(found, expected, subject=subject, fix=fix)
    elif used >= USED_PERCENT and space.available < USED_PERCENT_LARGE:
        yield warn(found, f"less than {USED_PERCENT} % used", subject=subject, fix=fix)
    else:
        yield ok(f"{found}; quotas are not visible")


@check("STO003", Row.SAVE, needs=(Storage,), uses=USES, tags=("checkpoint", "space"))
def no_inodes(facts: Facts, options: Options) -> Iterator[Finding]:
    """There are no inodes left for checkpoint files

    What: Compares the free inodes where --ckpt points with the files of ten sharded saves; 0 of 0 means
        that the file system has no such limit.
    Why: A file system full of small files refuses new ones with "No space left on device" although df
        shows free bytes. A sharded checkpoint makes a file or more for each rank.
    Fix: Remove small files (caches, logs, unpacked datasets), or save elsewhere.
    Sources: statvfs(3), f_favail; node health check (fs_inodes), gcm health checks.
    """
    ckpt = checkpoint_of(facts)
    if ckpt is None:
        yield no_checkpoint()
        return
    space = ckpt.space
    if space is None:
        yield skip(f"the inodes of {ckpt.path} could not be read", enable="an answer of statvfs")
        return
    if space.inodes <= 0:
        yield ok(f"the file system of {ckpt.path} sets no limit of inodes")
        return
    ranks = max(local_ranks(facts, options), 1) * max(node_count(facts, options) or 1, 1)
    used = percent(space.inodes - space.inodes_available, space.inodes)
    found = f"{space.inodes_available} of {space.inodes} inodes free for {ckpt.path} ({used} % used)"
    subject = Subject(path=ckpt.path)
    command = f"df -i {shlex.quote(ckpt.path)}"
    fix = Fix("Remove small files such as caches and unpacked datasets, or save elsewhere", command)
    if space.inodes_available < 2 * ranks:
        yield fail(
            found, f"{2 * ranks} or more: {ranks} ranks write a file or more each", subject=subject, fix=fix
        )
    elif space.inodes_available < max(INODES_MARGIN * 2 * ranks, INODES_LOW) and used >= USED_PERCENT:
        yield warn(found, f"room for {INODES_MARGIN} saves of {ranks} ranks", subject=subject, fix=fix)
    else:
        yield ok(found)
