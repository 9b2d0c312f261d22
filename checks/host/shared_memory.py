"""/dev/shm: too small for the ranks, used up, or holding what dead runs left behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from fsdp_doctor.engine.job import USES, local_ranks, visible_gpus
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.storage import Space, Storage
from fsdp_doctor.tables.host_thresholds import (
    SHM_COMFORTABLE,
    SHM_DOCKER_DEFAULT,
    SHM_FREE_PER_RANK,
    SHM_PER_RANK,
    SHM_USED_PERCENT,
    TRAINING_NAMES,
)
from fsdp_doctor.tables.units import percent, size

SHM = "/dev/shm"
NO_SPACE = "the size of /dev/shm could not be read"


def _shm(facts: Facts) -> Space | None:
    space = facts[Storage].spaces.get(SHM)
    return space if space is not None and space.total > 0 else None


def _larger(facts: Facts, ranks: int) -> Fix:
    """How /dev/shm is made larger, by what set its size."""
    host = facts.find(Host)
    container = host.container if host is not None else None
    wanted = max(8, ranks * 2)
    if container == "kubernetes":
        text = 'Mount an emptyDir with "medium: Memory" and a sizeLimit of some GiB at /dev/shm in the pod'
        return Fix(text, risk=Risk.DISRUPTIVE)
    if container is not None:
        text = f"Start the container again with --shm-size={wanted}g, or with --ipc=host to use the host's"
        return Fix(text, risk=Risk.DISRUPTIVE)
    return Fix(
        "Remount /dev/shm with a larger size",
        f"sudo mount -o remount,size={wanted}G {SHM}",
        Risk.NEEDS_ROOT,
        Owner.ADMIN,
    )


def _too_small(total: int, ranks: int) -> bool:
    return ranks > 1 and total < max(SHM_DOCKER_DEFAULT, SHM_PER_RANK * ranks)


@check("HST001", Row.NCCL, needs=(Storage,), uses=(Host, *USES), tags=("container", "memory"))
def too_small(facts: Facts, options: Options) -> Iterator[Finding]:
    """/dev/shm is too small for the ranks of this machine

    What: Compares the size of /dev/shm with the number of ranks on this node: less than 64 MiB for each
        of several GPU ranks fails, less than 1 GiB in all is worth raising.
    Why: NCCL's ranks of one machine exchange data and addresses through shared memory, and DataLoader
        workers hand batches over through it. With docker's default of 64 MiB the first communicator
        ends with "No space left on device" or "unhandled system error", or workers die of a bus error.
    Fix: Give the container --shm-size=16g or --ipc=host; in Kubernetes mount an emptyDir of medium Memory
        at /dev/shm; on a host remount it larger.
    Sources: NCCL user guide, troubleshooting, shared memory; pytorch/torchtitan#853; vllm#1710;
        PyTorch notes on multiprocessing.
    """
    space, ranks = _shm(facts), local_ranks(facts, options)
    if space is None:
        yield skip(NO_SPACE, enable="a mounted /dev/shm")
        return
    found = f"{SHM} is {size(space.total)} for {ranks} local rank{'s' if ranks != 1 else ''}"
    subject, fix = Subject(path=SHM), _larger(facts, ranks)
    if _too_small(space.total, ranks) and visible_gpus(facts) > 0:
        default = ", docker's default" if space.total <= SHM_DOCKER_DEFAULT else ""
        expected = f"at least {size(SHM_PER_RANK * ranks)} of shared memory, better 1 GiB for each rank"
        yield fail(found + default, expected, subject=subject, fix=fix)
    elif space.total <= SHM_DOCKER_DEFAULT or (space.total < SHM_COMFORTABLE and visible_gpus(facts) > 0):
        yield warn(found, f"at least {size(SHM_COMFORTABLE)} of shared memory", subject=subject, fix=fix)
    else:
        yield ok(found)


@check("HST002", Row.NCCL, needs=(Storage,), uses=(Host, *USES), tags=("memory",))
def used_up(facts: Facts, options: Options) -> Iterator[Finding]:
    """/dev/shm is nearly full

    What: Looks at what is left of /dev/shm: less than 32 MiB for each local GPU rank fails, 90 per cent
        in use is a warning.
    Why: A new communicator or a DataLoader worker that finds no room there ends the run with
        "No space left on device" or a bus error, although the size itself is right.
    Fix: Remove what earlier runs left in /dev/shm, or make it larger.
    Sources: NCCL user guide, troubleshooting, shared memory; statvfs(3), f_bavail.
    """
    space, ranks = _shm(facts), local_ranks(facts, options)
    if space is None:
        yield skip(NO_SPACE, enable="a mounted /dev/shm")
        return
    need, used = SHM_FREE_PER_RANK * max(ranks, 1), percent(space.total - space.available, space.total)
    found = f"{size(space.available)} of {size(space.total)} free in {SHM} ({used} % used)"
    subject = Subject(path=SHM)
    fix = Fix("List what holds it and remove what no running process needs", f"ls -lS {SHM} | head -20")
    if _too_small(space.total, ranks) and used < SHM_USED_PERCENT:
        yield ok(f"{found}; its size is judged apart")
    elif space.available < need and visible_gpus(facts) > 0 and ranks > 1:
        yield fail(found, f"{size(need)} free for {ranks} ranks", subject=subject, fix=fix)
    elif used >= SHM_USED_PERCENT:
        yield warn(found, f"less than {SHM_USED_PERCENT} % used", subject=subject, fix=fix)
    else:
        yield ok(found)


@check("HST003", Row.NCCL, needs=(Host,), uses=(Gpus,), tags=("memory",))
def leftovers(facts: Facts, options: Options) -> Iterator[Finding]:
    """Shared-memory segments of dead runs are left in /dev/shm

    What: Lists /dev/shm/nccl-* and torch_* segments that belong to no living training process.
    Why: NCCL and DataLoader workers unlink their segments when they end; after a kill or a crash they stay,
        count as memory of the machine and of the container, and fill /dev/shm until a communicator
        cannot be made.
    Fix: Remove them; make sure first that no run is using them.
    Sources: NCCL user guide, troubleshooting, shared memory; PyTorch notes on multiprocessing,
        file_system sharing.
    """
    host, gpus = facts[Host], facts.find(Gpus)
    segments = [s for s in host.shm_segments if re.match(r"(nccl-|torch_)", s[0].rsplit("/", 1)[-1])]
    if not segments:
        yield ok("no segment of NCCL or PyTorch in /dev/shm")
        return
    busy = any(g.processes and any(not p.own for p in g.processes) for g in gpus.devices) if gpus else False
    dead = [s for s in segments if not _alive(host, s, busy)]
    if not dead:
        yield ok(f"{len(segments)} segments of running processes in /dev/shm")
        return
    own = [s for s in dead if s[2] is not None and s[2] == host.uid]
    for group, mine in ((own, True), ([s for s in dead if s not in own], False)):
        if group:
            yield _left(group, mine, bool(host.processes))


def _alive(host: Host, segment: tuple[str, int, int | None], gpus_busy: bool) -> bool:
    """Whether a living process may own a segment; unsure counts as alive only where a GPU is in use."""
    path, _, uid = segment
    named = re.match(r"torch_(\d{1,9})_", path.rsplit("/", 1)[-1])
    if named and host.processes:
        return any(p.pid == int(named.group(1)) for p in host.processes)
    training = [
        p
        for p in host.processes
        if p.state != "Z" and (uid is None or p.uid is None or p.uid == uid) and _trains(p.name, p.cmdline)
    ]
    return gpus_busy or bool(training)


def _trains(name: str, cmdline: tuple[str, ...]) -> bool:
    words = " ".join(cmdline).lower()
    tool = "fsdp-doctor" in words or "fsdp_doctor" in words
    return not tool and (name.lower().startswith(TRAINING_NAMES) or "torch" in words)


def _left(group: list[tuple[str, int, int | None]], mine: bool, seen: bool) -> Finding:
    """One finding; removal is safe only for own segments and where the running processes were seen."""
    paths = sorted(s[0] for s in group)
    total = sum(max(s[1], 0) for s in group)
    owners = sorted({s[2] for s in group if s[2] is not None})
    command = "rm -- " + " ".join(shlex.quote(p) for p in paths)
    if mine and seen:
        fix = Fix("Remove the segments, which are yours and belong to no running process", command)
    elif mine:
        fix = Fix("Make sure that no run of yours uses them, then remove them", command, Risk.DISRUPTIVE)
    else:
        text = "Make sure that no run uses them, then remove them as their owner or as root"
        fix = Fix(text, f"sudo {command}", Risk.NEEDS_ROOT, Owner.ADMIN)
    whose = f" of uid {', '.join(map(str, owners))}" if owners else ""
    return warn(
        f"{len(paths)} leftover segments{whose} with {size(total)} in /dev/shm: "
        f"{', '.join(paths[:3])}{' …' if len(paths) > 3 else ''}",
        "no nccl-* or torch_* segment without a running process",
        subject=Subject(path=paths[0]),
        fix=fix,
        evidence=(Evidence("/dev/shm", "\n".join(paths[:50])),),
    )
