"""Faults of kernel and hardware that the kernel log tells of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsdp_doctor.checks.host._reading import age_words, trains, youngest_age
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Status, Subject, fail, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.tables.host_thresholds import DRIVER_NAMES, OLD_EVENT_SECONDS
from fsdp_doctor.tables.kernel_messages import (
    CRASH,
    CRASH_LIBRARIES,
    HARDWARE,
    HUNG_TASK,
    LOCKUPS,
    Match,
    matches,
)

REBOOT = Fix(
    "Read the stack that follows in the kernel log, then reboot the machine",
    "sudo dmesg -T",
    owner=Owner.ADMIN,
)


def _groups(found: Iterable[Match]) -> list[tuple[Match, ...]]:
    """Matches by the name of their signature, in order of appearance."""
    groups: dict[str, list[Match]] = {}
    for match in found:
        groups.setdefault(match.signature.name, []).append(match)
    return [tuple(g) for g in groups.values()]


def _evidence(group: tuple[Match, ...]) -> tuple[Evidence, ...]:
    return tuple(Evidence("kernel log", m.line[:500]) for m in (*group[:1], *group[1:][-2:]))


def _count(group: tuple[Match, ...]) -> str:
    where = ", ".join(dict.fromkeys(m.where for m in group if m.where))
    return f"{group[0].signature.name}, {len(group)} in the kernel log{f' ({where[:120]})' if where else ''}"


@check("HST024", Row.NCCL, needs=(KernelLog,), uses=(Host,), tags=("kernel-log",))
def lockups(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel was locked up, or tasks hung in it

    What: Looks in the kernel log for soft and hard lockups, oopses, RCU stalls and tasks that were blocked
        for minutes. In a virtual machine a soft lockup is a warning: its host may have stopped it.
    Why: A rank on such a machine stops without an error while all others wait in a collective until
        NCCL's timeout. After an oops the kernel's state is not to be trusted.
    Fix: Read the stack in the log: it names the driver or file system. Reboot, and update that driver.
    Sources: Linux kernel documentation, admin-guide/lockup-watchdogs; kernel/hung_task.c; gpud.
    """
    log, host = facts[KernelLog], facts.find(Host)
    virtual = host is not None and host.hypervisor is True
    found = matches(log.lines, LOCKUPS)
    for group in _groups(found):
        severe = group[0].signature.severe and not (virtual and group[0].signature.name == "soft lockup")
        say = fail if severe else warn
        yield say(_count(group), "none since boot", fix=REBOOT, evidence=_evidence(group))
    hung = matches(log.lines, (HUNG_TASK,))
    own = tuple(m for m in hung if trains(m.who) or m.who.startswith(DRIVER_NAMES))
    for group, say in ((own, fail), (tuple(m for m in hung if m not in own), warn)):
        if group:
            tasks = ", ".join(dict.fromkeys(f"{m.who} ({m.pid})" for m in group[:5]))
            text = f"tasks hung in the kernel for minutes: {tasks}; {len(group)} messages"
            yield say(text, "none since boot", fix=REBOOT, evidence=_evidence(group))
    if not found and not hung:
        yield ok(f"no lockup and no hung task in {len(log.lines)} lines")


@check("HST025", Row.WRONG, needs=(KernelLog,), tags=("kernel-log", "hardware"))
def hardware_errors(facts: Facts, options: Options) -> Iterator[Finding]:
    """The machine has reported hardware errors

    What: Looks in the kernel log for machine checks, EDAC and firmware (APEI) reports and throttled
        processors. Uncorrected errors fail; corrected ones and throttling are a warning.
    Why: An uncorrected memory error kills the rank that touches it or damages what it computes; corrected
        ones in numbers announce it. A throttled processor makes its rank late in every step.
    Fix: Drain the machine, run the vendor's diagnostics and replace the DIMM or processor that is named.
    Sources: Linux kernel documentation, driver-api/edac and x86 machine check; node health check (mcelog).
    """
    log = facts[KernelLog]
    found = matches(log.lines, HARDWARE)
    severe = tuple(m for m in found if m.signature.severe)
    for group in _groups(severe) or _groups(found):
        named = ", ".join(dict.fromkeys(m.where for m in group if m.where))
        slow = "temperature" in group[0].signature.name
        fix = Fix(
            "Look at cooling and power of the machine"
            if slow
            else "Drain the machine and have the named part tested and replaced",
            None if slow else "sudo ras-mc-ctl --errors",
            Risk.DISRUPTIVE if not slow else Risk.SAFE,
            Owner.HARDWARE,
        )
        say = fail if group[0].signature.severe else warn
        yield say(
            _count(group),
            "none since boot",
            subject=Subject(device=named[:120] or None),
            fix=fix,
            row=Row.SLOW if slow else None,
            evidence=_evidence(group),
        )
    if not found:
        yield ok(f"no hardware error in {len(log.lines)} lines")


@check("HST026", Row.NCCL, needs=(KernelLog,), uses=(Host,), tags=("kernel-log",))
def crashes(facts: Facts, options: Options) -> Iterator[Finding]:
    """Processes crashed inside libraries of CUDA, NCCL or PyTorch

    What: Looks in the kernel log for segmentation faults, general protection faults and invalid
        instructions whose address lies in one of these libraries. Older than 14 days they are only noted.
    Why: The rank that crashes leaves no Python traceback, only exit code -11 or -4; the others end with
        "connection closed" or a timeout. Which library it was decides where to look.
    Fix: libnccl: check its version and plug-ins; libcuda: the driver and Xid messages; an invalid
        instruction: the processor lacks what the wheel was built for.
    Sources: arch/x86/mm/fault.c and arch/x86/kernel/traps.c (message format); signal(7).
    """
    log = facts[KernelLog]
    found = tuple(m for m in matches(log.lines, (CRASH,), log.seconds) if m.where.startswith(CRASH_LIBRARIES))
    if not found:
        yield ok(f"no crash in a library of CUDA, NCCL or PyTorch in {len(log.lines)} lines")
        return
    libraries: dict[str, list[Match]] = {}
    for match in found:
        libraries.setdefault(match.where, []).append(match)
    for library, group in libraries.items():
        who = ", ".join(dict.fromkeys(f"{m.who} ({m.pid})" for m in group[:5]))
        age = youngest_age((m.seconds for m in group), facts.find(Host))
        yield Finding(
            Status.INFO if age is not None and age > OLD_EVENT_SECONDS else Status.WARN,
            f"{len(group)} crash{'es' if len(group) != 1 else ''} in {library}{age_words(age)}: {who}",
            "none since boot",
            subject=Subject(path=library),
            fix=Fix(
                "Run once with faulthandler and core dumps to see the stack",
                "export PYTHONFAULTHANDLER=1; ulimit -c unlimited",
            ),
            row=Row.NCCL
            if library.startswith(("libnccl", "libibverbs", "libmlx5", "libfabric"))
            else Row.START,
            evidence=_evidence(tuple(group)),
        )
