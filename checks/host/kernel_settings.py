"""The kernel's age and uptime, and settings that end or hide processes."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import has_capability, version
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.scheduler import Scheduler
from fsdp_doctor.tables.host_thresholds import (
    CAP_SYS_PTRACE,
    FIRST_USER_UID,
    KERNEL_MAINTAINED,
    KERNEL_RECOMMENDED,
    RECENT_BOOT_SECONDS,
    REMOVE_IPC_OFF_BY_DEFAULT,
    SECCOMP_FILTER,
)


@check("HST027", None, needs=(Host,), tags=("kernel",))
def recent_boot(facts: Facts, options: Options) -> Iterator[Finding]:
    """The machine was started minutes ago

    What: Reads /proc/uptime; less than ten minutes is said.
    Why: A machine that rebooted during a job explains why its rank vanished, and services such as the
        fabric manager, peer memory and mounts may not be ready yet.
    Fix: Nothing, if the start was meant; else look in the previous boot's log for the reason.
    Sources: proc(5), /proc/uptime; gcm health checks (600 s).
    """
    uptime = facts[Host].uptime
    if uptime is None:
        yield skip("the uptime could not be read", enable="/proc/uptime")
    elif 0 <= uptime < RECENT_BOOT_SECONDS:
        fix = Fix("Look at how the previous boot ended", "journalctl -k -b -1 -e", owner=Owner.ADMIN)
        yield info(
            f"started {uptime:.0f} s ago", expected="ten minutes or more, or a start that was meant", fix=fix
        )
    else:
        yield ok(f"up for {uptime / 86400:.1f} days")


@check("HST028", None, needs=(Host,), tags=("kernel", "container"))
def stacks_hidden(facts: Facts, options: Options) -> Iterator[Finding]:
    """Stacks of hanging ranks cannot be read from outside

    What: Reads kernel.yama.ptrace_scope, the system-call filter and CAP_SYS_PTRACE of this process.
    Why: When a run hangs, py-spy and gdb show where each rank stands. With ptrace_scope 1 they need to be
        a parent of the rank or root, with 2 root, with 3 nobody may; a container's filter without the
        capability forbids it as well.
    Fix: Start the container with --cap-add SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0; else start
        the ranks with faulthandler registered on a signal.
    Sources: Linux kernel documentation, LSM/Yama; py-spy documentation; docker documentation, seccomp.
    """
    host = facts[Host]
    scope, filtered = host.ptrace_scope, host.container is not None and host.seccomp == SECCOMP_FILTER
    if scope is None and not filtered:
        yield skip("kernel.yama.ptrace_scope could not be read", enable="/proc/sys/kernel/yama")
        return
    allowed = has_capability(host, CAP_SYS_PTRACE) and (scope or 0) < 3
    if allowed or (not filtered and scope == 0):
        yield ok("stacks of other processes can be read")
        return
    reason = (
        "the container's filter without CAP_SYS_PTRACE" if filtered else f"kernel.yama.ptrace_scope {scope}"
    )
    text = (
        "Start the container with --cap-add SYS_PTRACE"
        if filtered
        else "Run py-spy with sudo, or let users trace their own processes"
    )
    command = None if filtered else "sudo sysctl -w kernel.yama.ptrace_scope=0"
    yield info(
        f"{reason}: py-spy and gdb cannot attach to running ranks",
        expected="0, or CAP_SYS_PTRACE: it matters only when a run hangs",
        fix=Fix(text, command, Risk.NEEDS_ROOT if command else Risk.DISRUPTIVE),
    )


@check("HST029", Row.NCCL, needs=(Host,), uses=(Scheduler,), tags=("scheduler",))
def remove_ipc(facts: Facts, options: Options) -> Iterator[Finding]:
    """Ranks lose their shared memory when a login session ends

    What: Reads RemoveIPC of logind.conf. "yes" is a warning; where it is not set, upstream systemd's
        default is yes, which is a warning for ranks that Slurm or MPI starts outside a login session.
    Why: logind deletes a user's files in /dev/shm when the last session of that user closes. Ranks that
        still run lose their segments: NCCL ends with "shm_open failed" or "unhandled system error".
    Fix: Set RemoveIPC=no in /etc/systemd/logind.conf and restart systemd-logind.
    Sources: logind.conf(5), RemoveIPC; NCCL user guide, troubleshooting, systemd.
    """
    host, scheduler = facts[Host], facts.find(Scheduler)
    if host.container is not None:
        yield ok("no login sessions in a container")
        return
    if host.uid is not None and host.uid < FIRST_USER_UID:
        yield ok(f"uid {host.uid} is a system user, whose memory logind leaves alone")
        return
    detached = scheduler is not None and (
        scheduler.resource_manager == "slurm" or scheduler.launcher in ("slurm", "mpi")
    )
    distribution = (host.os_name or "").lower()
    off = any(name in distribution for name in REMOVE_IPC_OFF_BY_DEFAULT)
    if host.remove_ipc is False or (host.remove_ipc is None and (off or not detached)):
        yield ok("RemoveIPC=no" if host.remove_ipc is False else "RemoveIPC is not set")
        return
    stated = (
        "RemoveIPC=yes in logind.conf"
        if host.remove_ipc
        else "RemoveIPC is not set, and systemd's default is yes"
    )
    yield warn(
        f"{stated}; ranks run as uid {host.uid if host.uid is not None else '?'}",
        "RemoveIPC=no on machines where ranks outlive login sessions",
        subject=Subject(path="/etc/systemd/logind.conf", variable="RemoveIPC"),
        fix=Fix(
            "Set RemoveIPC=no and restart systemd-logind",
            "echo -e '[Login]\\nRemoveIPC=no' | sudo tee /etc/systemd/logind.conf.d/removeipc.conf",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
        confidence=Confidence.HIGH if host.remove_ipc else Confidence.MEDIUM,
    )


@check("HST030", Row.NCCL, needs=(Host,), tags=("kernel",))
def old_kernel(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel is older than training libraries recommend

    What: Compares the kernel's version with 5.5. Kernels that a distribution maintains under an older
        number (el8, Amazon Linux 2) are only said.
    Why: accelerate warns that processes can hang on older kernels; GPUDirect through dma-buf and newer
        drivers need a newer one as well.
    Fix: Update to the current kernel of the distribution.
    Sources: accelerate, utils/other.py (check_os_kernel); NCCL user guide, dma-buf (kernel 5.12).
    """
    host = facts[Host]
    kernel = version(host.kernel)
    if kernel is None:
        yield skip("the kernel's version could not be read", enable="/proc/sys/kernel/osrelease")
    elif kernel >= KERNEL_RECOMMENDED:
        yield ok(f"kernel {host.kernel}")
    elif any(mark in (host.kernel or "") for mark in KERNEL_MAINTAINED):
        yield info(
            f"kernel {host.kernel}, which its distribution maintains; accelerate will warn of it",
            expected="5.5 or newer, or a maintained kernel",
        )
    else:
        fix = Fix("Update the kernel of the distribution and reboot", risk=Risk.DISRUPTIVE, owner=Owner.ADMIN)
        yield warn(f"kernel {host.kernel}", "5.5 or newer", fix=fix)
