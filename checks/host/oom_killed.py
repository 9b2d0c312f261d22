"""Processes that the kernel's OOM killer has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsdp_doctor.checks.host._reading import age_words, trains, youngest_age
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Risk, Row, fail, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.kernel_log import KernelLog
from fsdp_doctor.tables.host_thresholds import OLD_EVENT_SECONDS
from fsdp_doctor.tables.kernel_messages import OOM_KILL, Match, matches
from fsdp_doctor.tables.units import size

SHOWN = 5
FIX = Fix(
    "Give the container or machine more memory, save sharded instead of gathering a full state dict, and "
    "use fewer DataLoader workers and less pinned memory",
    risk=Risk.DISRUPTIVE,
)


@check("HST013", Row.OOM, needs=(Host,), uses=(KernelLog, Gpus), tags=("memory", "kernel-log"))
def oom_killed(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel's OOM killer has ended processes

    What: Reads oom_kill of this control group's memory.events and the kernel log's "Killed process"
        messages since boot. On a machine without GPUs, of other programs, or where the last is older than
        14 days, these are a warning.
    Why: A killed rank leaves no Python traceback: torchrun reports exit code -9 and the other ranks time
        out in NCCL, which looks like a network fault. What killed it once will again.
    Fix: Raise the memory limit or need less: save sharded, load on one rank only or on the meta device,
        fewer DataLoader workers.
    Sources: Linux kernel documentation, cgroup v2, memory.events; mm/oom_kill.c.
    """
    host, log, gpus = facts[Host], facts.find(KernelLog), facts.fact(Gpus)
    say = warn if isinstance(gpus, Unknown) and gpus.absent else fail
    found = matches(log.lines, (OOM_KILL,), log.seconds) if log is not None else ()
    kills = host.cgroup.oom_kills
    if kills:
        limit = host.cgroup.memory_max
        under = f" under its limit of {size(limit)}" if limit is not None else ""
        yield say(
            f"OOM kills in this control group{under}: {kills} (memory.events oom_kill)",
            "none since the container or session started",
            fix=FIX,
            evidence=_evidence(found),
        )
    elif found:
        yield from _logged(found, say, host)
    elif log is not None:
        yield ok("no OOM kill in the kernel log")
    elif kills == 0 and host.container is not None:
        yield ok("memory.events counts no OOM kill in this container")
    else:
        fact = facts.fact(KernelLog)
        reason = fact.reason if isinstance(fact, Unknown) else "no kernel log"
        yield skip(f"OOM kills are in the kernel log: {reason}", enable="a readable kernel log (dmesg)")


def _logged(found: tuple[Match, ...], severe: Callable[..., Finding], host: Host) -> Iterator[Finding]:
    """One finding for training processes, by `severe`, and one for others."""
    for training in (True, False):
        group = tuple(m for m in found if trains(m.who) is training)
        if not group:
            continue
        named = ", ".join(dict.fromkeys(f"{m.who} ({m.pid})" for m in group[:SHOWN]))
        if len(group) > SHOWN:
            named += f" and {len(group) - SHOWN} more"
        age = youngest_age((m.seconds for m in group), host)
        text = (
            f"the OOM killer ended {len(group)} process{'es' if len(group) != 1 else ''} since boot"
            f"{age_words(age)}: {named}"
        )
        old = age is not None and age > OLD_EVENT_SECONDS
        say = severe if training and not old else warn
        yield say(text, "no OOM kill", fix=FIX, evidence=_evidence(group))


def _evidence(found: tuple[Match, ...]) -> tuple[Evidence, ...]:
    return tuple(Evidence("kernel log", m.line) for m in found[-3:])
