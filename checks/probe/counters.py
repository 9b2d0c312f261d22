"""Hardware counters that grew while the probe ran."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.probe._common import FACTS, RERUN, evidence, subject, who
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import Cost, check
from fsdp_doctor.findings import Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fabric import Fabric, Grown
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.probe import ProbeResult

LOOK = {
    "nvlink": "nvidia-smi nvlink -e",
    "pcie": "nvidia-smi -q -d PCIE",
    "clocks": "nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    "ib": "rdma statistic show",
    "net": "ip -s link",
}
REPAIR = {
    "nvlink": "Reset the GPU or reboot the node; if it grows again, have the GPU or baseboard replaced",
    "pcie": "Reseat the GPU, its riser and cables",
    "clocks": "Look at airflow, inlet temperature, heat sinks and power supplies",
    "ib": "Clean or replace the cable and transceiver, and look at the switch port",
    "net": "Replace the cable, and look at the switch port and the driver's ring sizes",
}


@check("PRB018", Row.SLOW, needs=FACTS, tags=("probe", "counters"), cost=Cost.MINUTES)
def grown(facts: Facts, options: Options) -> Iterator[Finding]:
    """Error or congestion counters grew during the probe.

    What: Reads the error counters of NVLink, PCIe, adapters and the GPUs' clocks before and after, and judges
        the difference: old errors do not count.
    Why: A link that sends again what was damaged slows FSDP's collectives without any error, and is the one
        that fails later in the run.
    Fix: Repair the link whose counter grew: cable, transceiver, slot, GPU.
    Sources: NVML field values (nvml.h); Linux sysfs-class-infiniband; vendors' hw_counters.
    """
    probe, fabric = facts[ProbeResult], facts[Fabric]
    if not fabric.counted:
        yield skip(
            "no counter was read before and after", enable="run the probe where NVML or sysfs shows them"
        )
        return
    kinds: dict[tuple[str, str, str], list[Grown]] = {}
    for g in fabric.grown:
        kinds.setdefault((g.meaning, g.plain, _part(g)), []).append(g)
    for (meaning, plain, part), same in kinds.items():
        yield _finding(probe, meaning, plain, part, same)
    if kinds:
        return
    unread = _unread(probe)
    if unread or not probe.ranks:
        yield skip(f"no counter of {', '.join(unread[:4])} was read before and after", enable=RERUN)
    else:
        yield ok(f"{fabric.counted} counters, no error counter grew")


def _unread(probe: ProbeResult) -> list[str]:
    """Hosts of which no rank has a counter both before and after."""
    read = {r.host for r in probe.ranks if r.counters_before.keys() & r.counters_after.keys()}
    return sorted({r.host for r in probe.ranks} - read)


def _part(g: Grown) -> str:
    return g.name.split("/")[0]


def _place(probe: ProbeResult, g: Grown) -> str:
    device = g.name.split("/")
    return f"{g.host} {device[1]}" if len(device) > 2 else who(probe, (g.rank,))


def _finding(probe: ProbeResult, meaning: str, plain: str, part: str, same: list[Grown]) -> Finding:
    places = "; ".join(f"{_place(probe, g)}: {g.name} +{g.delta}" for g in same[:4])
    found = f"{plain} during the probe: {places}"
    about = subject(probe, tuple(sorted({g.rank for g in same})))
    if meaning == "CONGESTION":
        return info(f"{found}; senders had to wait", expected="no growth on an idle network", subject=about)
    fix = Fix(
        REPAIR.get(part, "Repair the device"),
        LOOK.get(part),
        Risk.SAFE,
        Owner.ADMIN if part == "clocks" else Owner.HARDWARE,
    )
    make = fail if meaning == "BROKEN" else warn
    more = evidence(f"{g.name} +{g.delta}" for g in same[4:8])
    return make(
        found,
        "no growth",
        subject=about,
        fix=fix,
        evidence=more,
    )
