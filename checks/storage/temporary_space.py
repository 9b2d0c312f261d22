"""Space for temporary files, on the root disk and for caches."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fsdp_doctor.checks.storage._reading import absolute, described, space_of
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.environment import Environment
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.storage import Space, Storage
from fsdp_doctor.tables.filesystems import INODES_LOW, ROOT_LOW, TEMPORARY_FULL, TEMPORARY_LOW
from fsdp_doctor.tables.units import size


@check("STO011", Row.START, needs=(Storage,), uses=(Environment,), tags=("space",))
def temporary_full(facts: Facts, options: Options) -> Iterator[Finding]:
    """There is no room for temporary files

    What: Looks at what is left in TMPDIR or /tmp and on the root file system. Next to nothing in the
        temporary folder fails, less than 1 GiB there or 500 MB on the root is a warning.
    Why: torchrun makes its log folder there, torch.compile and Triton build kernels there, DataLoader and
        multiprocessing keep sockets there. Without room the launch ends with "No space left on device",
        or "No usable temporary directory found".
    Fix: Empty it, or point TMPDIR to a local disk with room.
    Sources: Python documentation, tempfile; torchrun documentation, --log-dir; gpud (root disk 500 MB).
    """
    storage, environment = facts[Storage], facts.find(Environment)
    named = environment.get("TMPDIR") if environment is not None else None
    folder = (absolute(named, environment.get("HOME") if environment else None) if named else None) or "/tmp"
    space, root = space_of(storage, folder), storage.spaces.get("/")
    if space is None and root is None:
        yield skip("the free space of /tmp and / could not be read", enable="an answer of statvfs")
        return
    bad = False
    if space is not None and space.total > 0 and (finding := _temporary(folder, space, storage)):
        bad = True
        yield finding
    same = (
        space is not None
        and root is not None
        and (space.total, space.available) == (root.total, root.available)
    )
    if root is not None and root.total > 0 and root.available < ROOT_LOW and not (bad and same):
        mount = storage.mount_of("/")
        if mount is None or "ro" not in mount.options:
            bad = True
            yield warn(
                f"{size(root.available)} of {size(root.total)} free on the root file system",
                f"{size(ROOT_LOW)} or more",
                subject=Subject(path="/"),
                fix=Fix("Find what fills it", "du -xh --max-depth=2 / 2>/dev/null | sort -h | tail -20"),
            )
    if not bad:
        known = space or root
        yield ok(f"{size(known.available) if known else '?'} free in {folder}")


def _temporary(folder: str, space: Space, storage: Storage) -> Finding | None:
    mount = described(storage.mount_of(folder))
    found = f"{size(space.available)} of {size(space.total)} free in {folder} ({mount})"
    expected, subject = f"{size(TEMPORARY_LOW)} or more for temporary files", Subject(path=folder)
    fix = Fix(
        "Empty it, or point TMPDIR to a local disk with room",
        f"du -xh --max-depth=1 {shlex.quote(folder)} 2>/dev/null | sort -h | tail -20",
    )
    if space.available < TEMPORARY_FULL:
        return fail(found, expected, subject=subject, fix=fix)
    if space.inodes > 0 and space.inodes_available < INODES_LOW // 100:
        inodes = f"{space.inodes_available} of {space.inodes} inodes free in {folder}"
        return fail(inodes, "room for new files", subject=subject, fix=fix)
    if space.available < TEMPORARY_LOW:
        return warn(found, expected, subject=subject, fix=fix)
    return None
