"""Processes that cannot be killed, and dead ones that nobody has collected."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import trains
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import (
    Confidence,
    Evidence,
    Finding,
    Fix,
    Owner,
    Risk,
    Row,
    fail,
    info,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts, Unknown
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host, Process
from fsdp_doctor.tables.host_thresholds import DISK_WAITS, DRIVER_NAMES


@check("HST022", Row.NCCL, needs=(Host,), uses=(Gpus,), tags=("processes",))
def uninterruptible(facts: Facts, options: Options) -> Iterator[Finding]:
    """Processes hang in the kernel

    What: Lists processes in state D (uninterruptible sleep). A training process or one of the driver that
        does not wait for an ordinary disk fails; others are a warning.
    Why: Such a process cannot be killed, keeps its GPU memory and its port, and waits for a driver, a GPU
        or a file server that does not answer. A new run on this machine will hang at the same place.
    Fix: See what it waits for in /proc/PID/wchan and the kernel log; bring the file server or the GPU
        back, else reboot.
    Sources: proc(5), /proc/PID/stat and wchan; gpud processes; gcm health checks.
    """
    host, gpus = facts[Host], facts.find(Gpus)
    if not host.processes:
        yield skip("no process list could be read", enable="/proc of the machine or PID namespace")
        return
    on_gpu = {p.pid for g in gpus.devices for p in g.processes or ()} if gpus is not None else set()
    waiting = [p for p in host.processes if p.state == "D"]
    stuck = [p for p in waiting if _stuck(p, host, on_gpu)]
    others = [p for p in waiting if p not in stuck and not _on_disk(p)]
    if stuck:
        yield fail(
            f"in uninterruptible sleep (state D): {_named(stuck)}",
            "no training or driver process in state D",
            fix=Fix(
                "See what it waits for; bring back the file server or GPU, or reboot the machine",
                f"cat /proc/{stuck[0].pid}/wchan; sudo cat /proc/{stuck[0].pid}/stack",
                Risk.NEEDS_ROOT,
                Owner.ADMIN,
            ),
            confidence=Confidence.MEDIUM,
            evidence=_evidence(stuck),
        )
    if others:
        yield warn(
            f"in uninterruptible sleep (state D): {_named(others)}",
            "none that stays in state D",
            fix=Fix(
                "Look again after a minute, and at what it waits for",
                "ps -eo pid,stat,wchan:32,comm | grep ' D'",
            ),
            confidence=Confidence.LOW,
            evidence=_evidence(others),
        )
    if not waiting:
        yield ok(f"none of {len(host.processes)} processes hangs in the kernel")
    elif not stuck and not others:
        yield ok(f"{len(waiting)} processes wait for a disk")


@check("HST023", Row.START, needs=(Host,), uses=(Gpus,), tags=("processes",))
def zombies(facts: Facts, options: Options) -> Iterator[Finding]:
    """Dead training processes were never collected

    What: Lists processes in state Z (zombie); those of a training run are a warning on a machine with GPUs.
    Why: A zombie whose threads still hang in the driver keeps GPU memory, and a launcher that does not
        collect its children does not notice that a rank has died. In a container without an init as
        process 1 they add up until no process can be started.
    Fix: End the parent, whose number is given; start containers with --init.
    Sources: proc(5); docker run, --init; gpud processes.
    """
    processes = facts[Host].processes
    if not processes:
        yield skip("no process list could be read", enable="/proc of the machine or PID namespace")
        return
    dead = [p for p in processes if p.state == "Z"]
    gpus = facts.fact(Gpus)
    without = isinstance(gpus, Unknown) and gpus.absent
    training = [p for p in dead if trains(p.name) and not without]
    if training:
        parents = ", ".join(sorted({str(p.ppid) for p in training if p.ppid is not None}))
        yield warn(
            f"zombies of training: {_named(training)}" + (f"; parents {parents}" if parents else ""),
            "no zombie",
            fix=Fix("End the parent processes; start containers with --init", risk=Risk.DISRUPTIVE),
        )
    elif dead:
        yield info(f"zombies: {_named(dead)}", expected="none")
    else:
        yield ok(f"no zombie among {len(processes)} processes")


def _on_disk(process: Process) -> bool:
    return process.wait_channel is not None and process.wait_channel.startswith(DISK_WAITS)


def _stuck(process: Process, host: Host, on_gpu: set[int]) -> bool:
    """Whether state D of this process is a fault and not a moment of reading a disk."""
    if _on_disk(process):
        return False
    if process.name.startswith(DRIVER_NAMES):
        return True
    channel = (process.wait_channel or "").lower()
    foreign = any(
        word in channel for word in ("nvidia", "uvm", "rpc_", "nfs", "ceph", "lustre", "ptlrpc", "fuse")
    )
    # A hidden wait channel may be an ordinary page fault.
    own = bool(channel) and process.uid is not None and process.uid == host.uid
    return trains(process.name) and (foreign or process.pid in on_gpu or own or process.ppid == 1)


def _named(processes: list[Process]) -> str:
    shown = ", ".join(f"{p.name} ({p.pid}{_channel(p)})" for p in processes[:5])
    return shown + (f" and {len(processes) - 5} more" if len(processes) > 5 else "")


def _channel(process: Process) -> str:
    return f", waits in {process.wait_channel}" if process.wait_channel else ""


def _evidence(processes: list[Process]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            f"/proc/{p.pid}", f"{p.name} {p.state} wchan={p.wait_channel or '?'} {' '.join(p.cmdline)[:200]}"
        )
        for p in processes[:5]
    )
