"""NVLinks: whether they are up, equally fast and free of errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp_doctor.checks.link._common import ONE_GPU, active_links, unanswered
from fsdp_doctor.engine.devices import (
    MACHINE_USES,
    by_value,
    counted,
    gpu_subject,
    gpu_words,
    virtual_machine,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.tables.gpu_products import product
from fsdp_doctor.tables.link_facts import NVLINK_CRC_WARN, NVLINK_REPLAY_WARN

STATE = "nvmlDeviceGetNvLinkState"
SPEED = "nvmlDeviceGetFieldValues"
SPEED_SHARE = 0.9
REPAIR = Fix(
    "Reset all GPUs of the board (restart the fabric manager first on an HGX board); if the links stay down, "
    "have the GPU reseated or replaced",
    "nvidia-smi nvlink -s",
    Risk.DISRUPTIVE,
    Owner.HARDWARE,
)


def _expected(gpu: Gpu, peers: Sequence[Gpu], guest: bool) -> int:
    """Links that should be up: the product's, but in a guest those of the best peer.

    A guest with a part of the board has links to GPUs of other guests, and those are down by design.
    """
    best = max(active_links(p) for p in peers)
    made = product(gpu.name)
    return best if guest or made is None or made.links is None else max(made.links, best)


def _down(gpu: Gpu) -> list[int]:
    return [link.index for link in gpu.nvlinks or () if link.active is False]


@check("LNK001", Row.SLOW, needs=(Gpus,), uses=MACHINE_USES, tags=("nvlink", "hardware"))
def inactive(facts: Facts, options: Options) -> Iterator[Finding]:
    """NVLinks are down.

    What: counts the active NVLinks of each GPU and compares with what its board wires (A100 SXM 12, H100,
        H200, B200 and GB200 18, V100 SXM 6), or with its peers where links depend on a bridge or on the
        part of the board that a virtual machine has.
    Why: NCCL builds its rings over the links that all GPUs share: one GPU with fewer links slows every
        all-gather and reduce-scatter of the job, or NCCL falls back to PCIe.
    Fix: reset the GPUs; have a GPU serviced whose links stay down.
    Sources: NVML API reference (NVLink state); Azure HPC and imbue health checks; product data sheets.
    """
    gpus = facts[Gpus].present
    guest = virtual_machine(facts) is not False
    known = [g for g in gpus if g.nvlinks is not None and any(k.active is not None for k in g.nvlinks)]
    silent = [g for g in gpus if g.nvlinks is None and (p := product(g.name)) is not None and p.links]
    if not known:
        if silent:
            yield unanswered(silent, STATE, "the state of the NVLinks", "bare metal")
        else:
            yield ok(f"{counted(gpus)} without NVLink")
        return
    bad: list[tuple[Gpu, tuple[int, int]]] = []
    for group in by_value((g, g.name) for g in known).values():
        for g in group:
            wanted = _expected(g, group, guest)
            # A link that NVML was not asked about is not down.
            if _down(g) and active_links(g) < wanted:
                bad.append((g, (active_links(g), wanted)))
    for (active, wanted), group in by_value(bad).items():
        down = "; ".join(f"GPU {g.index}: {', '.join(map(str, _down(g)))}" for g in group if _down(g))
        alone = len(gpus) == 1
        say = warn if alone else fail
        yield say(
            f"NVLink down on {gpu_words(group)}: {active} of {wanted} links active"
            + (f" (inactive {down})" if down else ""),
            f"{wanted} active NVLinks on each {group[0].name or 'GPU'}",
            subject=gpu_subject(group),
            fix=REPAIR,
            evidence=tuple(Evidence(STATE, f"GPU {g.index}: links {_down(g)} inactive") for g in group),
        )
    if not bad:
        counts = sorted({active_links(g) for g in known})
        yield ok(f"{counted(known)}, {', '.join(map(str, counts))} NVLinks active on each")


@check("LNK002", Row.SLOW, needs=(Gpus,), tags=("nvlink", "hardware"))
def link_speed(facts: Facts, options: Options) -> Iterator[Finding]:
    """NVLinks run at different or low speeds.

    What: compares the speed per link and the number of links that NVML reports, between GPUs of one model
        and with the product.
    Why: a collective is as fast as its slowest link; links that trained at a lower rate cost bandwidth
        on every rank.
    Fix: reset the GPUs, so that the links train again; have the board serviced if it stays.
    Sources: NVML API reference (field values NVLINK_SPEED and LINK_COUNT); ml-engineering NVLink notes.
    """
    gpus = facts[Gpus].present
    known = [(g, g.nvlink_mbps) for g in gpus if g.nvlink_mbps]
    if not known:
        if any((p := product(g.name)) is not None and p.links for g in gpus):
            yield unanswered(gpus, SPEED, "the speed of the NVLinks")
        else:
            yield ok(f"{counted(gpus)} without NVLink")
        return
    faulty = False
    for name, group in by_value((g, g.name) for g, _ in known).items():
        made = product(name)
        speeds = {g.index: g.nvlink_mbps or 0 for g in group}
        best = max(speeds.values())
        slow = [g for g in group if speeds[g.index] < best]
        if slow:
            faulty = True
            yield fail(
                f"NVLink speed of {gpu_words(slow)}: "
                f"{', '.join(str(speeds[g.index]) for g in slow)} MB/s per link",
                f"{best} MB/s as on the other GPUs",
                subject=gpu_subject(slow),
                fix=REPAIR,
            )
        elif made is not None and made.link_mbps is not None and best < SPEED_SHARE * made.link_mbps:
            faulty = True
            yield warn(
                f"NVLink speed of {gpu_words(group)}: {best} MB/s per link",
                f"{made.link_mbps} MB/s on {name}",
                subject=gpu_subject(group),
                fix=REPAIR,
            )
        counts = {g.index: g.nvlink_count for g in group if g.nvlink_count is not None}
        fewer = [g for g in group if g.index in counts and counts[g.index] < max(counts.values())]
        if fewer:
            faulty = True
            yield fail(
                f"NVLink count of {gpu_words(fewer)}: {', '.join(str(counts[g.index]) for g in fewer)}",
                f"{max(counts.values())} as on the other GPUs",
                subject=gpu_subject(fewer),
                fix=REPAIR,
            )
    if not faulty:
        yield ok(f"{counted(known)}, {', '.join(sorted({str(s) for _, s in known}))} MB/s per NVLink")


def _total(gpu: Gpu, *names: str) -> int:
    return sum(link.errors.get(n, 0) for link in gpu.nvlinks or () for n in names)


@check("LNK003", Row.SLOW, needs=(Gpus,), tags=("nvlink", "hardware"))
def link_errors(facts: Facts, options: Options) -> Iterator[Finding]:
    """NVLinks have had many errors.

    What: adds the link error counters of each GPU: recoveries, replays and CRC errors since the driver
        loaded. A few replays are repaired by the link and mean nothing.
    Why: each recovery stops the link for a moment, and many replays take bandwidth; a failing link ends
        as Xid 74 in the middle of a run.
    Fix: measure with the probe, and have the GPU serviced if the counters grow while it runs.
    Sources: NVML API reference (NVLink error counters); imbue and Meta GCM health checks; DCGM.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if any(link.errors for link in g.nvlinks or ())]
    if not known:
        if len(gpus) < 2:
            yield skip(ONE_GPU)
        elif any((p := product(g.name)) is not None and p.links for g in gpus):
            yield unanswered(gpus, "nvmlDeviceGetNvLinkErrorCounter", "the NVLink error count")
        else:
            yield ok(f"{counted(gpus)} without NVLink")
        return
    some = 0
    for g in known:
        recovery, replay = _total(g, "recovery"), _total(g, "replay")
        crc = _total(g, "crc_flit", "crc_data")
        if not recovery and not replay and not crc:
            continue
        some += 1
        found = f"GPU {g.index}: {recovery} NVLink recoveries, {replay} replays, {crc} CRC errors"
        if recovery or replay >= NVLINK_REPLAY_WARN or crc >= NVLINK_CRC_WARN:
            worst = max(g.nvlinks or (), key=lambda link: sum(link.errors.values()))
            yield warn(
                f"{found} since the driver loaded, most on link {worst.index}",
                f"0 recoveries, fewer than {NVLINK_REPLAY_WARN} replays",
                subject=gpu_subject([g]),
                fix=Fix(
                    "Watch whether they grow under load (`fsdp-doctor probe`); if so have it serviced",
                    f"nvidia-smi nvlink -e -i {g.index}",
                    Risk.SAFE,
                    Owner.HARDWARE,
                ),
            )
        else:
            yield info(f"{found}: too few to matter", subject=gpu_subject([g]))
    if not some:
        yield ok(f"no NVLink errors on {counted(known)}")
