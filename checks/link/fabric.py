"""The NVLink fabric: its state, its health, and the service that sets it up."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import fabric_waits, meshed, unanswered
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import (
    Evidence,
    Finding,
    Fix,
    Owner,
    Risk,
    Row,
    Subject,
    fail,
    info,
    ok,
    skip,
    warn,
)
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.tables.nvml_codes import (
    FABRIC_COMPLETED,
    FABRIC_IN_PROGRESS,
    FABRIC_NOT_STARTED,
    FABRIC_NOT_SUPPORTED,
    HEALTH_SUMMARIES,
    TRANSIENT,
    health_faults,
)

INFO = "nvmlDeviceGetGpuFabricInfoV"
MANAGER = "nv-fabricmanager"
UNIT = "nvidia-fabricmanager"
START = Fix(
    "Start the fabric manager of exactly the driver's version; if it ran before and was restarted, reset all "
    "GPUs or reboot",
    f"sudo systemctl enable --now {UNIT} && systemctl status {UNIT}",
    Risk.NEEDS_ROOT,
    Owner.ADMIN,
)


def _manager_runs(host: Host | None) -> bool | None:
    """Whether the fabric manager runs; None where the processes of others cannot be seen."""
    if host is None:
        return None
    # The kernel keeps 15 characters of a name.
    if any(p.name[:15] == MANAGER[:15] or any(MANAGER in a for a in p.cmdline[:1]) for p in host.processes):
        return True
    unit = next((s for u, s in host.systemd_units.items() if u.startswith(UNIT)), None)
    if unit is not None:
        return unit == "active"
    if host.container is not None or not any(p.pid == 1 for p in host.processes):
        return None
    return False


@check("LNK004", Row.START, needs=(Gpus,), uses=(Host, Pci), tags=("nvlink", "fabric"))
def fabric_state(facts: Facts, options: Options) -> Iterator[Finding]:
    """The NVLink fabric is not set up.

    What: reads the fabric state of each GPU that has NVSwitches above it. A100 and virtual machines
        without the switches have no such state.
    Why: until the fabric manager (or, on NVL72 racks, the switch controller) has set up the routes, CUDA
        refuses the GPUs with error 802, "system not yet initialized", and torch sees none.
    Fix: start the fabric manager of the driver's exact version and wait for the state "completed".
    Sources: NVIDIA fabric manager user guide; NVML API reference (GPU fabric info); pytorch#35710.
    """
    gpus, host = facts[Gpus].present, facts.find(Host)
    known = [(g, g.fabric) for g in gpus if g.fabric is not None]
    joined = [(g, f) for g, f in known if f.state != FABRIC_NOT_SUPPORTED]
    if not joined:
        pci = facts.find(Pci)
        if known and pci is not None and pci.nvswitches:
            yield skip(
                "the GPUs have no fabric state, NVSwitches are there", enable="a driver that reports it"
            )
        elif known:
            yield skip(
                "the fabric is not supported here: no NVSwitch is passed to this machine or none is built in"
            )
        elif not meshed(gpus):
            yield skip("these GPUs have no NVLink fabric")
        else:
            yield unanswered(gpus, INFO, "the state of the NVLink fabric")
        return
    runs = _manager_runs(host)
    absent = f"; {MANAGER} is not running" if runs is False else ""
    waiting = [g for g, f in joined if f.state == FABRIC_NOT_STARTED]
    coming = [g for g, f in joined if f.state == FABRIC_IN_PROGRESS]
    failed = [(g, f.status) for g, f in joined if f.state == FABRIC_COMPLETED and f.status != 0]
    if waiting:
        yield fail(
            f"NVLink fabric not started on {gpu_words(waiting)}{absent}",
            "fabric state completed",
            subject=gpu_subject(waiting),
            fix=START,
            evidence=(Evidence(INFO, f"state {FABRIC_NOT_STARTED}"),),
        )
    if coming:
        yield warn(
            f"NVLink fabric in progress on {gpu_words(coming)}{absent}",
            "fabric state completed",
            subject=gpu_subject(coming),
            fix=Fix(
                "Wait a minute and check again; if it stays, restart the fabric manager",
                "nvidia-smi -q | grep -A4 Fabric",
                Risk.SAFE,
                Owner.ADMIN,
            ),
        )
    for status, group in by_value(failed).items():
        yield fail(
            f"NVLink fabric of {gpu_words(group)} completed with error status {status}",
            "status 0 (success)",
            subject=gpu_subject(group),
            fix=Fix(
                "Read the fabric manager's log, then restart it and reset all GPUs",
                "sudo tail -50 /var/log/fabricmanager.log",
                Risk.NEEDS_ROOT,
                Owner.ADMIN,
            ),
        )
    if not waiting and not coming and not failed:
        yield ok(f"fabric state completed on {counted(joined)}")


@check("LNK005", Row.NCCL, needs=(Gpus,), tags=("nvlink", "fabric", "hardware"))
def fabric_health(facts: Facts, options: Options) -> Iterator[Finding]:
    """The NVLink fabric is not healthy.

    What: decodes the health mask and summary of the fabric: degraded bandwidth, unhealthy routes, recoveries
        in progress, incorrect configuration, a missing partition.
    Why: collectives over the fabric are slow, hang or fail while the GPUs themselves look fine.
    Fix: wait where a recovery is in progress; have the rack or board serviced otherwise.
    Sources: NVML API reference (GPU fabric health mask); gpud fabric state; DCGM.
    """
    gpus = facts[Gpus].present
    known = [(g, g.fabric) for g in gpus if g.fabric is not None and g.fabric.state == FABRIC_COMPLETED]
    if not known:
        states = any(g.fabric is not None for g in gpus)
        yield (
            skip("no GPU is in a fabric that is set up")
            if states or not meshed(gpus)
            else unanswered(gpus, INFO, "the health of the NVLink fabric")
        )
        return
    faulty = False
    seen = by_value((g, (health_faults(f.health_mask), f.health_summary)) for g, f in known)
    for (faults, summary), group in seen.items():
        word = HEALTH_SUMMARIES.get(summary) if summary is not None else None
        if not faults and word is None:
            continue
        faulty = True
        passing = bool(faults) and set(faults) <= TRANSIENT and summary != 2
        say = warn if passing else fail
        yield say(
            f"NVLink fabric of {gpu_words(group)}: {', '.join(faults) or 'no single fault named'}"
            + (f" (summary: {word})" if word else ""),
            "a healthy fabric",
            subject=gpu_subject(group),
            fix=Fix(
                "Wait for the recovery to end and check again"
                if passing
                else "Read the fabric manager's log; reset the GPUs, and have switches and cables serviced",
                "nvidia-smi -q | grep -A12 Fabric",
                Risk.SAFE,
                Owner.ADMIN if passing else Owner.HARDWARE,
            ),
            evidence=tuple(Evidence(INFO, f"health mask {f.health_mask:#x}") for g, f in known if g in group),
        )
    if not faulty:
        yield ok(f"no fault in the fabric health of {counted(known)}")


@check("LNK006", Row.START, needs=(Pci, Host), uses=(Gpus,), tags=("nvlink", "fabric"))
def fabric_manager(facts: Facts, options: Options) -> Iterator[Finding]:
    """The fabric manager does not run on an NVSwitch machine.

    What: looks for NVSwitches on the PCI bus and for the fabric manager, where the fabric state of the
        GPUs does not already answer. Inside a container the host's services cannot be seen.
    Why: on boards with NVSwitches CUDA waits for the fabric manager: without it torch sees no GPU (error
        802). Its version must equal the driver's, else it stops at once.
    Fix: install the fabric manager of the driver's exact version and start it.
    Sources: NVIDIA fabric manager user guide; Azure HPC, imbue and gpud checks.
    """
    switches, host, gpus = facts[Pci].nvswitches, facts[Host], facts.find(Gpus)
    if not switches:
        yield skip("PCI lists no NVSwitch")
        return
    states = {g.fabric.state for g in gpus.present if g.fabric is not None} if gpus is not None else set()
    if states == {FABRIC_COMPLETED}:
        yield ok(f"{len(switches)} NVSwitches, the fabric is set up")
        return
    if gpus is not None and fabric_waits(gpus):
        yield info(f"{len(switches)} NVSwitches; the fabric state of the GPUs says the rest")
        return
    runs = _manager_runs(host)
    if runs is None:
        where = f"a {host.container} container" if host.container is not None else "this user"
        yield skip(
            f"{where} does not see the host's services", enable=f"systemctl is-active {UNIT} on the host"
        )
        return
    if runs:
        yield ok(f"{len(switches)} NVSwitches, the fabric manager runs")
        return
    unit = next((s for u, s in host.systemd_units.items() if u.startswith(UNIT)), None)
    yield fail(
        f"{len(switches)} NVSwitches and no running {MANAGER}" + (f" (service {unit})" if unit else ""),
        "the fabric manager of the driver's version runs",
        subject=Subject(device=switches[0].bdf),
        fix=START,
    )
