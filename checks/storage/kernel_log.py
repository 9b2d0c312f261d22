"""File servers that went silent and disks that fail, as the kernel log tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from fsdp_doctor.checks.storage._reading import described
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.subjects.storage import Mount, Storage
from fsdp_doctor.tables.filesystems import NFS
from fsdp_doctor.tables.kernel_messages import (
    DISK,
    DISK_IGNORED,
    NETWORK_FS,
    NFS_BACK,
    NFS_SILENT,
    Match,
    match,
    matches,
)

HIDES_DISKS = ("/dev/mapper/", "/dev/md", "/dev/dm-")


@check("STO009", Row.SAVE, needs=(KernelLog,), uses=(Storage,), tags=("kernel-log", "nfs"))
def server_silent(facts: Facts, options: Options) -> Iterator[Finding]:
    """A file server stopped answering

    What: Looks in the kernel log for NFS servers that did not respond, and for lost or evicted clients of
        Lustre, Ceph and SMB. A server of a present mount that has not come back since fails; one that has
        is a warning.
    Why: While the server is silent every rank that reads data or saves waits in the kernel, cannot be
        killed, and the others reach NCCL's timeout: it looks like a communication fault.
    Fix: Bring the server or the path to it back before the run; on NFS use hard mounts and look at the
        server's load during saves.
    Sources: net/sunrpc/clnt.c (messages); nfs(5); Lustre operations manual; gpud (NFS).
    """
    log, storage = facts[KernelLog], facts.find(Storage)
    last: dict[str, tuple[Match, int]] = {}
    for line in log.lines:
        found = match(line, (NFS_SILENT, NFS_BACK))
        if found is not None:
            count = last[found.where][1] if found.where in last else 0
            last[found.where] = (found, count + (found.signature is NFS_SILENT))
    silent = {server: (m, n) for server, (m, n) in last.items() if n}
    for server, (latest, count) in silent.items():
        yield _server(server, latest, count, _mounts_of(server, storage))
    others = matches(log.lines, NETWORK_FS)
    for name in dict.fromkeys(m.signature.name for m in others):
        group = [m for m in others if m.signature.name == name]
        yield warn(
            f"{name}, {len(group)} in the kernel log: {group[-1].line[:200]}",
            "none since boot",
            fix=Fix("Look at the file server and at the network to it", owner=Owner.ADMIN),
            evidence=(Evidence("kernel log", group[-1].line[:500]),),
        )
    if not silent and not others:
        yield ok(f"no silent file server in {len(log.lines)} lines")


def _mounts_of(server: str, storage: Storage | None) -> tuple[Mount, ...]:
    """NFS mounts of a server as the kernel names it; all that are known where none fits by name."""
    mounts = tuple(m for m in storage.mounts if m.fstype in NFS) if storage is not None else ()
    return tuple(
        m
        for m in mounts
        if m.source.rpartition(":")[0].strip("[]") == server or f"addr={server}" in m.options
    )


def _server(server: str, latest: Match, count: int, mounts: tuple[Mount, ...]) -> Finding:
    back = latest.signature is NFS_BACK
    where = f", mounted at {', '.join(m.point for m in mounts[:3])}" if mounts else ""
    found = f"nfs: server {server} not responding, {count} in the kernel log{where}"
    say = fail if mounts and not back else warn
    return say(
        found + ("; it answered again since" if back else "; it has not answered since"),
        "a file server that answers",
        subject=Subject(device=server, path=mounts[0].point if mounts else None),
        fix=Fix(
            "Look whether the server is up and can be reached, and at its load during saves",
            f"showmount -e {server}" if re.fullmatch(r"[\w.:-]+", server) else None,
            owner=Owner.ADMIN,
        ),
        evidence=(Evidence("kernel log", latest.line[:500]),),
    )


@check("STO010", Row.SAVE, needs=(KernelLog,), uses=(Storage,), tags=("kernel-log", "hardware"))
def disk_errors(facts: Facts, options: Options) -> Iterator[Finding]:
    """A disk or its file system has reported errors

    What: Looks in the kernel log for I/O errors, NVMe time-outs, failed disks of an array, and file systems
        that found themselves damaged or turned read-only. Errors of a disk that holds nothing mounted
        here are a warning; floppy and optical drives and image files are left out.
    Why: After an error the kernel turns a file system read-only, and the next checkpoint, log line or
        cache entry ends the run. A failing disk makes reads so slow that ranks time out.
    Fix: Save what is on it, check the file system and replace the disk.
    Sources: Linux kernel documentation, ext4 and XFS error handling; drivers/nvme and block/blk-core.c
        (messages).
    """
    log, storage = facts[KernelLog], facts.find(Storage)
    found = [
        m for m in matches(log.lines, DISK) if not re.match(rf"(?:{'|'.join(DISK_IGNORED)})\d+$", m.where)
    ]
    groups: dict[str, list[Match]] = {}
    for item in found:
        groups.setdefault(item.where, []).append(item)
    for device, group in groups.items():
        mount = _mount_of(device, storage)
        unused = mount is None and _is_unused(device, storage)
        say = fail if any(m.signature.severe for m in group) and not unused else warn
        counts = Counter(m.signature.name for m in group)
        yield say(
            f"{device or 'a disk'}: {', '.join(f'{name} ({count})' for name, count in counts.items())} "
            "in the kernel log" + (f"; {described(mount)}" if mount is not None else ""),
            "none since boot",
            subject=Subject(device=device or None, path=mount.point if mount is not None else None),
            fix=Fix(
                "Save what is on the disk, check its file system, and replace it if its own log agrees",
                f"sudo smartctl -a /dev/{device}"
                if re.fullmatch(r"(?:sd[a-z]+|nvme\d+(?:n\d+)?)", device)
                else None,
                Risk.NEEDS_ROOT,
                Owner.HARDWARE,
            ),
            evidence=tuple(Evidence("kernel log", m.line[:500]) for m in group[-3:]),
        )
    if not found:
        yield ok(f"no disk error in {len(log.lines)} lines")


def _mount_of(device: str, storage: Storage | None) -> Mount | None:
    """A mount whose source is the device, a partition of it, or a namespace of its controller."""
    if not device or storage is None:
        return None
    pattern = re.compile(rf"/dev/{re.escape(device)}(?:n\d+)?(?:p?\d+)?")
    return next((m for m in storage.mounts if pattern.fullmatch(m.source)), None)


def _is_unused(device: str, storage: Storage | None) -> bool:
    """Whether no mount can be on the device: false where a mapper, an array or a layer hides its disks."""
    if not device or storage is None or not storage.mounts:
        return False
    return not any(m.source.startswith(HIDES_DISKS) or m.fstype in ("zfs", "overlay") for m in storage.mounts)
