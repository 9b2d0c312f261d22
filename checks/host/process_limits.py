"""Limits on the stack, on processes and on threads."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import nccl_version, version
from fsdp_doctor.engine.job import USES, local_ranks, visible_gpus
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, Subject, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.stack import Stack, Torch
from fsdp_doctor.tables.host_thresholds import NPROC_BASE, NPROC_PER_RANK, NPROC_STARTS, STACK_FIXED_IN


@check("HST007", Row.NCCL, needs=(Host,), uses=(Torch, Stack), tags=("limits",))
def stack_unlimited(facts: Facts, options: Options) -> Iterator[Finding]:
    """An unlimited stack makes the threads of this NCCL overflow

    What: Reads the limit of the stack (ulimit -s) and the version of NCCL that ranks load.
    Why: With "unlimited" glibc gives new threads 2 MiB, less than the usual 8 MiB. NCCL before 2.28 starts
        its threads with that default, and they can overflow: a segmentation fault without a Python
        traceback.
    Fix: Set ulimit -s 8192 in the script that starts the ranks, or use NCCL 2.28 or newer.
    Sources: NCCL user guide, troubleshooting, stack size; pthread_create(3).
    """
    limit, text = facts[Host].limits.get("stack size"), nccl_version(facts)
    nccl = version(text)
    if limit is None:
        yield skip("the limit of the stack could not be read", enable="/proc/self/limits")
    elif limit.soft is not None:
        yield ok(f"stack limited to {limit.soft // 1024} KiB")
    elif nccl is None:
        yield skip("the stack is unlimited and the version of NCCL is not known", enable="a torch with NCCL")
    elif nccl >= STACK_FIXED_IN:
        yield ok(f"stack unlimited; NCCL {text} sets the size of its threads' stacks itself")
    else:
        yield warn(
            f"the stack is unlimited (ulimit -s) and NCCL is {text}",
            "ulimit -s 8192, or NCCL 2.28 or newer",
            subject=Subject(variable="stack"),
            fix=Fix("Limit the stack in the script that starts the ranks", "ulimit -s 8192"),
        )


@check("HST008", Row.START, needs=(Host,), uses=USES, tags=("limits", "container"))
def processes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Too few processes and threads are allowed for the ranks

    What: Compares the limit of processes (ulimit -u, nproc) and the control group's pids.max with what the
        local ranks start: some hundred threads each.
    Why: A rank that cannot start a thread ends with "can't start new thread", "Resource temporarily
        unavailable" or OpenBLAS's "pthread_create failed", often in a DataLoader worker and late.
    Fix: Raise nproc, or the pids limit of the container (docker run --pids-limit=-1; podPidsLimit of the
        kubelet; TasksMax of the unit).
    Sources: getrlimit(2), RLIMIT_NPROC; Linux kernel documentation, cgroup v2, pids; gpud.
    """
    host, ranks = facts[Host], max(local_ranks(facts, options), 1)
    need = NPROC_BASE + NPROC_PER_RANK * ranks
    limit = host.limits.get("processes")
    soft = limit.soft if limit is not None and host.uid != 0 else None
    free = None
    if host.cgroup.pids_max is not None:
        free = max(host.cgroup.pids_max - max(host.cgroup.pids_current or 0, 0), 0)
    if limit is None and free is None:
        yield skip("no limit of processes could be read", enable="/proc/self/limits")
        return
    bad = False
    for variable, value, found, fix in (
        ("nproc", soft, f"{soft} processes and threads allowed (ulimit -u, nproc)", _nproc(need)),
        (
            "pids.max",
            free,
            f"{free} of the control group's {host.cgroup.pids_max} processes left (pids.max)",
            PIDS,
        ),
    ):
        if value is None or value >= need:
            continue
        bad = True
        expected = f"about {need} for {ranks} local rank{'s' if ranks != 1 else ''}"
        fatal = value < NPROC_STARTS * ranks and visible_gpus(facts) > 0
        yield (fail if fatal else warn)(found, expected, subject=Subject(variable=variable), fix=fix)
    if not bad:
        yield ok(f"room for {need} processes and threads of {ranks} ranks")


PIDS = Fix(
    "Raise the limit of the container or unit: docker run --pids-limit=-1, podPidsLimit of the kubelet, "
    "TasksMax= of the systemd unit",
    risk=Risk.DISRUPTIVE,
    owner=Owner.ADMIN,
)


def _nproc(need: int) -> Fix:
    text = (
        "Raise the limit in the shell, or '* - nproc' in /etc/security/limits.conf if the hard one is lower"
    )
    return Fix(text, f"ulimit -u {max(need, 65536)}")
