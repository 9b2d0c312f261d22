"""The PCIe links of the GPUs: width and generation."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.link._common import RESEAT, device_links, narrow_link, serving, unanswered
from fsdp_doctor.engine.devices import (
    MACHINE_USES,
    at_address,
    by_value,
    counted,
    gpu_subject,
    gpu_words,
    virtual_machine,
)
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, Subject, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpu, Gpus
from fsdp_doctor.subjects.pci import Pci
from fsdp_doctor.tables.gpu_thresholds import CLOCK_LOADED_FRACTION, UTILIZATION_LOADED
from fsdp_doctor.tables.nvml_codes import CLOCK_IDLE

WIDTH = "nvmlDeviceGetCurrPcieLinkWidth"
GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration"


@check("LNK011", Row.SLOW, needs=(Gpus,), uses=(Pci, *MACHINE_USES), tags=("pcie", "hardware"))
def width(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU's PCIe link has fewer lanes than it could.

    What: compares the current with the maximum link width of each GPU, and of the switch above it. Unlike
        the generation the width does not drop when a GPU is idle.
    Why: half the lanes are half the bandwidth to the host, to the adapters and to GPUs without NVLink:
        the rank on this GPU loads data, offloads and communicates slower, and all ranks wait for it.
    Fix: reseat the GPU, its riser or cable; check the bifurcation setting of the slot.
    Sources: NVML API reference (PCIe link width); imbue cluster-health; ml-engineering debugging notes.
    """
    gpus, pci, guest = facts[Gpus].present, facts.find(Pci), virtual_machine(facts)
    known = [g for g in gpus if g.pcie_width and g.pcie_width_max]
    slots = {g.index: slot for g in known if not guest and (slot := _slot(pci, g)) is not None}
    widths = [(g, (g.pcie_width or 0, g.pcie_width_max or 0)) for g in known]
    below = [(g, (now, top)) for g, (now, top) in widths if now < top]
    narrow = [(g, (now, top)) for g, (now, top) in below if now < slots.get(g.index, top)]
    placed = [g for g, (now, _) in below if now >= slots.get(g.index, now + 1)]
    if placed:
        lanes = sorted({slots[g.index] for g in placed})
        yield info(
            f"{gpu_words(placed)} in a slot of x{', x'.join(map(str, lanes))} lanes",
            expected="the slot, not a fault, is the limit",
            subject=gpu_subject(placed),
        )
    if pci is not None and not guest:
        named = {g.index for g, _ in narrow}
        yield from _switch_links(pci, gpus, named)
    if not known:
        yield unanswered(gpus, WIDTH, "the PCIe width")
        return
    for (now, top), group in by_value(narrow).items():
        # All of them at one width is how the board is laid out; a gaming board splits its lanes.
        designed = len(group) == len(known) and len(known) > 1
        say = fail if not designed and not guest and all(serving(g) for g in group) else warn
        yield say(
            f"PCIe width of {gpu_words(group)}: x{now} of x{top} lanes",
            f"x{top}",
            subject=gpu_subject(group),
            fix=RESEAT,
            evidence=(Evidence(WIDTH, f"{now}, maximum {top}"),),
        )
    if not narrow and not placed:
        seen = sorted({now for _, (now, _) in widths})
        yield ok(f"{counted(known)} at x{', x'.join(map(str, seen))}, the most that GPU and slot allow")


def _slot(pci: Pci | None, gpu: Gpu) -> int | None:
    """Lanes of the port that the GPU is plugged into; NVML's maximum does not always know them."""
    device = next((d for d in pci.gpus if at_address([gpu], d.bdf)), None) if pci is not None else None
    port = pci.get(device.parents[0]) if pci is not None and device is not None and device.parents else None
    return port.width_max if port is not None and port.width_max else None


def _switch_links(pci: Pci, gpus: tuple[Gpu, ...], named: set[int]) -> Iterator[Finding]:
    """Links between switches and the root that are narrower than both of their ends."""
    found: dict[str, tuple[tuple[int, int], list[Gpu]]] = {}
    for device in pci.gpus:
        gpu = at_address(gpus, device.bdf)
        if gpu is None or gpu.index in named:
            continue
        for lower, upper in device_links(pci, device)[1:]:
            lanes = narrow_link(lower, upper)
            if lanes is not None:
                found.setdefault(lower.bdf, (lanes, []))[1].append(gpu)
    for bdf, ((now, top), group) in found.items():
        yield warn(
            f"PCIe switch {bdf} above {gpu_words(group)}: x{now} of x{top} lanes to the CPU",
            f"x{top}",
            subject=Subject(gpu=tuple(g.index for g in group), device=bdf),
            fix=RESEAT,
        )


def _at_work(gpu: Gpu) -> bool:
    """Whether the GPU does something: an idle one lowers its PCIe generation to save power."""
    if gpu.utilization is not None and gpu.utilization >= UTILIZATION_LOADED:
        return True
    reasons = gpu.clocks_event_reasons
    if reasons is None or reasons & CLOCK_IDLE or gpu.clock_sm is None or not gpu.clock_sm_max:
        return False
    busy = gpu.clock_sm >= CLOCK_LOADED_FRACTION * gpu.clock_sm_max
    return busy and (gpu.performance_state is None or gpu.performance_state <= 2)


@check("LNK012", Row.SLOW, needs=(Gpus,), uses=MACHINE_USES, tags=("pcie", "hardware"))
def generation(facts: Facts, options: Options) -> Iterator[Finding]:
    """A GPU's PCIe link runs at a lower generation under load.

    What: compares the PCIe generation with the highest that GPU and slot allow, only on GPUs that are at
        work: an idle GPU falls back to generation 1 to save power, which is no fault.
    Why: each generation halves or doubles the bandwidth to the host and to the adapters.
    Fix: check the slot's speed setting in the firmware, then riser and cable.
    Sources: NVML API reference (PCIe link generation); ml-engineering debugging notes.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.pcie_gen and g.pcie_gen_max]
    if not known:
        yield unanswered(gpus, GENERATION, "the PCIe generation")
        return
    slow = [
        (g, (g.pcie_gen or 0, g.pcie_gen_max or 0))
        for g in known
        if (g.pcie_gen or 0) < (g.pcie_gen_max or 0)
    ]
    busy = [(g, gens) for g, gens in slow if _at_work(g)]
    for (now, top), group in by_value(busy).items():
        yield warn(
            f"PCIe generation {now} of {top} on {gpu_words(group)} under load",
            f"generation {top}",
            subject=gpu_subject(group),
            fix=Fix(
                "Set the slot to automatic or the full speed in the firmware, then check riser and cable",
                "nvidia-smi -q | grep -A8 'GPU Link Info'",
                Risk.SAFE,
                Owner.HARDWARE,
            ),
        )
    # The board's own limit: a slot of an older generation shows here and not as a lower current one.
    capped = [
        (g, (g.pcie_gen_max or 0, g.pcie_gen_gpu_max))
        for g in known
        if g.pcie_gen_gpu_max and (g.pcie_gen_max or 0) < g.pcie_gen_gpu_max
    ]
    for (top, own), group in by_value(capped).items():
        yield info(
            f"{gpu_words(group)} could run PCIe generation {own}, the slot allows {top}",
            subject=gpu_subject(group),
        )
    if not busy and not capped:
        idle = len(slow)
        yield ok(
            f"{counted(known)}: " + (f"{idle} idle at a lower generation" if idle else "the full generation")
        )
